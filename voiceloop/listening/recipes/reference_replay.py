"""The true words of a turn, as a good streaming recognizer would report them.

Stands for a recognizer that cannot be downloaded here: each word, force-aligned, is revealed
120 ms after its end, and a pause is answered with everything that has been revealed by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from voiceloop.listening.recipes.endpointing_set import CallerTurn
from voiceloop.listening.recipes.heard_turn import HeardWords, Pause

REVEAL_LAG_MS = 120.0
FLUSH_LAG_MS = 40.0  # chunk of the client, decoding, two hops
FINALS_LAG_MS = 200.0  # the same of a service that is sent the sound once the pause has begun
# A word whose aligned end lies so little after the last sound belongs before the pause.
ALIGNMENT_SLACK_MS = 100.0


def replay(turn: CallerTurn, pauses: Sequence[Pause]) -> tuple[HeardWords, ...]:
    """The hypotheses of one turn in order of time. The turn's words must be known."""
    assert turn.words is not None
    heard = []
    for index, word in enumerate(turn.words):
        words = tuple(w.text for w in turn.words[: index + 1])
        heard.append(HeardWords(word.end_ms + REVEAL_LAG_MS, words, False))
    for pause in pauses:
        before = [w for w in turn.words if w.end_ms <= pause.since_ms + ALIGNMENT_SLACK_MS]
        last_ms = before[-1].end_ms + REVEAL_LAG_MS if before else 0.0
        at_ms = max(pause.detected_ms + FLUSH_LAG_MS, last_ms)
        revealed = tuple(w.text for w in turn.words if w.end_ms + REVEAL_LAG_MS <= at_ms)
        heard.append(HeardWords(at_ms, revealed, True))
    return tuple(sorted(heard, key=lambda words: (words.at_ms, words.flushed)))


def finals(turn: CallerTurn, pauses: Sequence[Pause]) -> tuple[HeardWords, ...]:
    """The same words from a service that decodes at pauses alone, and tells nothing before."""
    late_ms = FINALS_LAG_MS - FLUSH_LAG_MS
    told = [words for words in replay(turn, pauses) if words.flushed]
    return tuple(HeardWords(one.at_ms + late_ms, one.words, True) for one in told)
