"""The weights file: every set of weights, the wait that earns a preemptive reply, what each costs.

Owns what `voiceloop/listening/endpointing_weights.toml` holds and the lines in it that say what
each eagerness costs the turns of the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from voiceloop.listening.endpointing import (
    FITTED,
    P_END,
    P_VOICE,
    SETS,
    UNREAD,
    UNREAD_P_END,
    Hazard,
    WeightSets,
    wait_ms,
)
from voiceloop.listening.recipes.hazard_fit import fit, fit_voice, samples_of, unread
from voiceloop.listening.recipes.pause_evidence import HeardTurn
from voiceloop.listening.recipes.real_turns import DICTATED
from voiceloop.listening.recipes.turn_frontier import (
    Outcome,
    ScoredPause,
    hazard_moment,
    moment_at,
    outcome,
    scored,
)
from voiceloop.listening.release import PATIENCE, Patience
from voiceloop.reply.preemptive import MAX_PAUSED_MS

MOST_PREEMPTIVE_IN_VAIN = 0.2
PREEMPTIVE_WAITS_MS = range(1200, 299, -20)
LEAST_SAMPLES = 200  # of a set with fewer moments there is nothing to fit
# The kinds of turns that each eagerness's cost is told of, by slices that they have and lack.
KINDS: dict[str, Callable[[frozenset[str]], bool]] = {
    "without hesitation": lambda slices: not slices & {"hesitation", *DICTATED},
    "hesitating": lambda slices: "hesitation" in slices,
    "dictated": lambda slices: bool(slices & DICTATED),
}


class ScoredTurn:
    """A turn weighed once, for any number of settings."""

    def __init__(self, heard: HeardTurn, sets: WeightSets) -> None:
        self.heard = heard
        self._pauses: tuple[ScoredPause, ...] = tuple(scored(p, sets) for p in heard.pauses)

    def outcome(self, patience: Patience) -> Outcome:
        moments = [moment_at(pause, patience) for pause in self._pauses]
        return outcome(self.heard, moments)


def scored_turns(heard: Iterable[HeardTurn], sets: WeightSets) -> list[ScoredTurn]:
    return [ScoredTurn(turn, sets) for turn in heard]


def fit_sets(heard: Sequence[HeardTurn]) -> WeightSets:
    """A hazard for each set whose witnesses these turns have; "words" always."""
    found = {SETS["words"]: fit(samples_of(heard, SETS["words"]))}
    for witnesses in SETS.values():
        samples = samples_of(heard, witnesses)
        if len(samples.over) < LEAST_SAMPLES:
            continue
        words = found.get(witnesses - {P_VOICE}) if P_VOICE in witnesses else None
        found[witnesses] = fit(samples) if words is None else fit_voice(samples, words)
    sets = WeightSets(found)
    sound = fit(samples_of(unread(heard), SETS["words"]))
    return WeightSets(found, preemptive_needed_ms(heard, sets), sound, FITTED.unread_p_end)


def fit_unread_p_end(heard: Sequence[HeardTurn]) -> Hazard:
    """Return the fit of another language, where a model without a head has told P(end)."""
    return fit(samples_of(unread(heard), frozenset({P_END})))


def costs(heard: Sequence[HeardTurn], sets: WeightSets) -> list[str]:
    """A line for each eagerness: share of these turns it cuts, and the median wait of the rest."""
    lines = []
    for name in PATIENCE:
        parts = []
        for kind, has in KINDS.items():
            members = [turn for turn in heard if has(turn.turn.slices)]
            outcomes = [
                outcome(turn, [hazard_moment(pause, sets, name) for pause in turn.pauses])
                for turn in members
            ]
            if outcomes:
                cut = sum(o.cut for o in outcomes) / len(outcomes)
                waits = [o.latency_ms for o in outcomes if not o.cut] or [0.0]
                parts.append(f"{kind} {cut:.1%}, {np.median(waits):.0f} ms")
        lines.append(f"  {name}: {'; '.join(parts)}")
    return lines


def preemptive_needed_ms(heard: Iterable[HeardTurn], sets: WeightSets) -> float:
    """The longest wait at which few enough preemptive replies begin in pauses that are no end."""
    begun: list[tuple[float, bool]] = []  # wait, whether the turn was over
    for turn in heard:
        for pause in turn.pauses:
            told = [step for step in pause.steps if step.evidence.p_end is not None]
            if told and told[0].from_ms - pause.since_ms <= MAX_PAUSED_MS:
                is_over = told[0].from_ms >= turn.turn.end_ms
                begun.append((wait_ms(told[0].evidence, sets), is_over))
    for longest_ms in PREEMPTIVE_WAITS_MS:
        ends = [is_over for needed_ms, is_over in begun if needed_ms <= longest_ms]
        if ends and ends.count(False) <= MOST_PREEMPTIVE_IN_VAIN * len(ends):
            return float(longest_ms)
    return 0.0


def as_toml(sets: WeightSets, comment: Sequence[str]) -> str:
    """The weights as the file that `voiceloop.listening.endpointing` reads."""
    lines = [f"# {line}" for line in comment]
    lines += ["", f"preemptive_needed_ms = {sets.preemptive_needed_ms!r}"]
    hazards = {name: sets.hazards.get(witnesses) for name, witnesses in SETS.items()}
    hazards |= {UNREAD: sets.unread, UNREAD_P_END: sets.unread_p_end}
    sections = (section(name, one) for name, one in hazards.items() if one is not None)
    return "\n".join(lines) + "\n" + "".join(sections)


def section(name: str, hazard: Hazard) -> str:
    """One set of weights in that file."""
    lines = ["", f"[{name}.rise]"]
    lines += [f"talk = {list(hazard.talk.logits)}"]
    lines += [f"dictation = {list(hazard.dictation.logits)}"]
    lines += ["", f"[{name}.weights]"]
    lines += [f"{key} = {round(v, 4)!r}" for key, v in hazard.weights.items()]
    return "\n".join(lines) + "\n"
