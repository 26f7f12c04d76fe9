"""What the policies come to on one set: frontiers, intervals by speaker, what ships, and AUC."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from audio.recipes.train_end_of_voice import auc
from benchmarks.endpointing.hearing import SetName
from benchmarks.endpointing.made_dictation import SAID
from benchmarks.endpointing.policies import (
    Policy,
    hazard_settings,
    smart_turn_settings,
    timer_settings,
)
from benchmarks.endpointing.table import LATENCIES_MS
from voiceloop.listening.endpointing import WeightSets
from voiceloop.listening.evidence import Evidence
from voiceloop.listening.recipes.caller_past import SAME, in_calls
from voiceloop.listening.recipes.endpointing_set import COPIES, UNSEEN
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn
from voiceloop.listening.recipes.real_turns import DICTATED
from voiceloop.listening.recipes.turn_frontier import (
    Point,
    bootstrap_by_speaker,
    cut_at,
    frontier,
    hazard_moment,
    latency_at,
    outcome,
    point,
)
from voiceloop.listening.release import PATIENCE, Eagerness

SLICES: dict[SetName, tuple[str, ...]] = {
    "real": ("orders", "numbers", "addresses", "names", "calls", "read", *sorted(COPIES)),
    "spliced": (
        "human", "synthetic", "hesitation", "digits", "short", *sorted(COPIES), UNSEEN, "orders",
    ),
    "made": tuple(SAID),
}  # fmt: skip
HEADLINES = ("cut@200", "cut@300", "cut@400", "cut@600", "latency@5%")  # with intervals
N_DRAWS = 200
PASTS = (SAME, 0.65, 0.8)  # turns before that hesitate as this one does: the set cannot tell
JUDGED_MS = 130.0  # of silence after which the evidence is held against the truth

Slices = frozenset[str]
# The callers that are told of apart where one eagerness is judged as it ships.
KINDS: dict[SetName, dict[str, Callable[[Slices], bool]]] = {
    "real": {
        "dictated": lambda slices: bool(slices & DICTATED),
        **{name: lambda s, name=name: name in s for name in SLICES["real"][:6]},  # type: ignore[misc]
        "all others": lambda slices: not slices & DICTATED,
    },
    "spliced": {
        f"{voice}, {kind}": lambda s, voice=voice, is_hesitant=kind == "hesitation": (  # type: ignore[misc]
            voice in s and ("hesitation" in s) == is_hesitant
        )
        for voice in ("human", "synthetic")
        for kind in ("plain", "hesitation")
    },
    "made": {name: lambda s, name=name: name in s for name in SAID},  # type: ignore[misc]
}


def best_of(settings: Sequence[Policy], chosen: Sequence[int] | None = None) -> list[Point]:
    """The frontier over some of the turns."""
    if chosen is None:
        return frontier(point(name, outcomes) for name, outcomes in settings)
    return frontier(point(name, [outcomes[i] for i in chosen]) for name, outcomes in settings)


def figures_of(best: Sequence[Point]) -> dict[str, float | None]:
    row: dict[str, float | None] = {f"cut@{ms}": cut_at(best, ms) for ms in LATENCIES_MS}
    row["latency@5%"] = latency_at(best, 0.05)
    row["latency@10%"] = latency_at(best, 0.10)
    return row


def intervals_of(settings: Sequence[Policy], speakers: Sequence[str], seed: int) -> dict[str, Any]:
    """95 % of the draws of speakers, for the headline figures."""
    cuts = np.array([[o.cut for o in outcomes] for _, outcomes in settings], dtype=float)
    waits = np.array([[o.latency_ms for o in outcomes] for _, outcomes in settings])
    drawn: dict[str, list[float]] = {}
    for chosen in bootstrap_by_speaker(speakers, N_DRAWS, seed):
        pairs = zip(waits[:, chosen].mean(axis=1), cuts[:, chosen].mean(axis=1), strict=True)
        best = frontier(Point("", float(ms), float(cut)) for ms, cut in pairs)
        for name, value in figures_of(best).items():
            if value is not None and name in HEADLINES:
                drawn.setdefault(name, []).append(value)
    return {
        name: [round(float(x), 4) for x in np.percentile(values, [2.5, 97.5])]
        for name, values in drawn.items()
    }


def measure(
    heard: Sequence[HeardTurn], weights: WeightSets, name: SetName, *, peer: bool
) -> dict[str, Any]:
    """Every policy over all turns (without the copies) and over each slice."""
    policies = {"voiceloop": hazard_settings(heard, weights), "timer": timer_settings(heard)}
    if peer:
        policies["smart turn v3.2"] = smart_turn_settings(heard)
    chosen = [i for i, h in enumerate(heard) if not h.turn.slices & COPIES]
    plain = [heard[i] for i in chosen]
    measured: dict[str, Any] = {"n_turns": len(chosen), "policies": {}}
    for policy, settings in policies.items():
        kept = [(label, [outcomes[i] for i in chosen]) for label, outcomes in settings]
        best = best_of(kept)
        slices = {}
        for slice_name in SLICES[name]:
            members = [i for i, h in enumerate(heard) if slice_name in h.turn.slices]
            if slice_name not in COPIES:
                members = [i for i in members if not heard[i].turn.slices & COPIES]
            if members:
                slices[slice_name] = {
                    "n_turns": len(members), **figures_of(best_of(settings, members)),
                }  # fmt: skip
        measured["policies"][policy] = {
            **figures_of(best),
            "intervals": intervals_of(kept, [one.turn.speaker for one in plain], 0),
            "frontier": [asdict(p) for p in best],
            "slices": slices,
        }
    measured["auc"] = aucs(plain, weights, name)
    measured["as shipped"] = {each: shipped(plain, weights, each, name) for each in PATIENCE}
    if name == "spliced":
        measured["as shipped, in calls"] = {
            f"auto, past alike in {same:.0%}": shipped(in_calls(plain, same), weights, "auto", name)
            for same in PASTS
        }
    return measured


def shipped(
    heard: Sequence[HeardTurn], weights: WeightSets, eagerness: Eagerness, name: SetName
) -> dict[str, Any]:
    """What callers get at one eagerness; soft: cut, and the answer is taken back at once.

    Turns of the set as it is are the first of their call. The waits are of the turns not cut.
    """
    found = {}
    for kind, has in KINDS[name].items():
        members = [one for one in heard if has(one.turn.slices)]
        if not members:
            continue
        outcomes = [
            outcome(one, [hazard_moment(p, weights, eagerness) for p in one.pauses])
            for one in members
        ]
        waits = [o.latency_ms for o in outcomes if not o.cut] or [0.0]
        found[kind] = {
            "n_turns": len(members),
            "cut": sum(o.cut for o in outcomes) / len(outcomes),
            "soft": sum(o.is_soft for o in outcomes) / len(outcomes),
            "latency_ms": {f"p{q}": float(np.percentile(waits, q)) for q in (10, 50, 90, 95)},
        }
    return found


# -- the evidence itself -------------------------------------------------------------------------


def aucs(heard: Sequence[HeardTurn], weights: WeightSets, name: SetName) -> dict[str, Any]:
    """How well words, voice and both tell ends from pauses, overall and within each slice.

    Of the pauses that last until all is told and at least JUDGED_MS: with true words that is some
    125 ms after the last sound. The voice is the recognizer's judgement alone.
    """
    rows = [
        (one, told, pause.since_ms + JUDGED_MS >= one.turn.end_ms)
        for one in heard
        for pause in one.pauses
        if (told := _told(pause)) is not None
    ]
    found = {}
    for part in ("all", *(part for part in SLICES[name] if part not in COPIES)):
        members = [row for row in rows if part == "all" or part in row[0].turn.slices]
        is_over = np.array([over for *_, over in members], dtype=bool)
        if not is_over.any() or is_over.all():
            continue
        voiced = [(told.p_voice, over) for _, told, over in members if told.p_voice is not None]
        words = [_logit(replace(told, p_voice=None), weights) for _, told, _ in members]
        both = [_logit(told, weights) for _, told, _ in members]
        found[part] = {
            "ends": int(is_over.sum()),
            "pauses": int((~is_over).sum()),
            "words": auc(np.array(words), is_over),
            "voice": (
                auc(np.array([v for v, _ in voiced]), np.array([over for _, over in voiced], bool))
                if voiced
                else None
            ),
            "both": auc(np.array(both), is_over),
        }
    return found


def _told(pause: HeardPause) -> Evidence | None:
    """All that is known of a pause in the end, where that is while it lasts."""
    if pause.resumed_ms is not None and pause.resumed_ms - pause.since_ms < JUDGED_MS:
        return None
    told = [step.evidence for step in pause.steps if step.evidence.words_are_full]
    return told[-1] if told else None


def _logit(evidence: Evidence, weights: WeightSets) -> float:
    hazard = weights.of(evidence)
    return hazard.score(evidence) + float(hazard.rise(evidence).at(JUDGED_MS))
