"""The reason of a silence's length: a sentence of the evidence, and of what it weighed.

Owns the wording, for people who read one turn: the page, a recording, a trace. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from voiceloop.listening.evidence import Evidence, terms
from voiceloop.listening.release import Eagerness

MOST_SIGNS = 5  # the heaviest are told
LEAST_WEIGHT = 0.15  # logits; less moves a wait by less than what a client sends at once
NAMES = {
    "p_end": "the model's reading of the words", "p_end_dictated": "the model's reading",
    "p_voice": "the voice", "fallen_voice": "how far the voice fell",
    "fallen_pitch": "how far its pitch fell", "words_so_far": "words so far",
    "dictated_so_far": "words dictated so far", "paused": "earlier pauses of this turn",
    "pause_prior": "this caller's pauses", "words_pending": "words still to come",
}  # fmt: skip


def reason_of(
    evidence: Evidence,
    weights: Mapping[str, float],
    cut_cost_s: float,
    eagerness: Eagerness,
    late: Sequence[str] = (),
) -> str:
    """Return what set the wait: what the caller gave, each sign with its logits, the price of a
    cut.

    weights: of the set that was asked, by name. late: judges that had not answered by then.
    """
    weighed = {name: weights.get(name, 0.0) * value for name, value in terms(evidence).items()}
    heaviest = sorted(weighed.items(), key=lambda one: -abs(one[1]))[:MOST_SIGNS]
    signs = [
        f"{NAMES.get(name, name.replace('_', ' '))} {logits:+.1f}"
        for name, logits in heaviest
        if abs(logits) >= LEAST_WEIGHT
    ]
    p_over = 1.0 / (1.0 + math.exp(-weights["bias"] - sum(weighed.values())))
    told = [f"{p_over:.0%} likely over before any silence ({', '.join(signs)})"]
    if (counted := evidence.progress) is not None:
        told.append(f"{counted.kind.value}: {counted.answer.value.replace('_', ' ')}")
    told.append(f"a cut costs {cut_cost_s:g} s ({eagerness})")
    if evidence.pace != 1.0:
        told.append(f"pauses {evidence.pace:.1f} times as long as usual")
    told += [f"{judge} judged too late" for judge in late]
    return "; ".join(told)
