"""What decides that a turn is over: ours, a fixed timer, Smart Turn, each at all its settings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.endpointing.smart_turn import ASKED_AFTER_MS, INFERENCE_MS, SmartTurn
from voiceloop.listening.endpointing import WeightSets
from voiceloop.listening.recipes.heard_turn import pauses_of
from voiceloop.listening.recipes.operating_points import scored_turns
from voiceloop.listening.recipes.pause_evidence import HeardTurn
from voiceloop.listening.recipes.turn_frontier import (
    Outcome,
    outcome,
    staged_moment,
    timer_moment,
)
from voiceloop.listening.release import PATIENCE, Patience

TIMERS_MS = range(60, 2001, 20)
SWEPT_CUT_COSTS_S = np.geomspace(0.01, 100.0, 30)
SWEPT_LEAST_MS = (120.0, 220.0, 320.0)

Policy = tuple[str, list[Outcome]]  # one setting of it, and what became of every turn


def hazard_settings(heard: Sequence[HeardTurn], weights: WeightSets) -> list[Policy]:
    """An eagerness: what a cut is worth in seconds of waiting x the least wait."""
    turns = scored_turns(heard, weights)
    longest_ms = PATIENCE["auto"].longest_ms
    swept = [Patience(float(cost), least, longest_ms)
             for least in SWEPT_LEAST_MS for cost in SWEPT_CUT_COSTS_S]  # fmt: skip
    return [
        (f"{patience.cut_cost_s:.2f} s, {patience.least_ms:.0f} ms",
         [turn.outcome(patience) for turn in turns])
        for patience in swept
    ]  # fmt: skip


def timer_settings(heard: Sequence[HeardTurn]) -> list[Policy]:
    return [
        (f"{ms} ms", [outcome(t, [timer_moment(p, ms) for p in t.pauses]) for t in heard])
        for ms in TIMERS_MS
    ]


def smart_turn_settings(heard: Sequence[HeardTurn]) -> list[Policy]:
    """Threshold x action delay x timeout: it is given the best of each at every latency."""
    model = SmartTurn()
    asked = [[model.p_over(t.turn, pause) for pause in pauses_of(t.turn)] for t in heard]
    found = []
    for threshold in (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98):
        for extra_ms in (0, 100, 200, 400, 600):
            for timeout_ms in (500, 700, 900, 1100, 1300, 1600, 2000, 2500):
                delay_ms = ASKED_AFTER_MS + INFERENCE_MS + extra_ms
                outcomes = []
                for turn, answers in zip(heard, asked, strict=True):
                    pairs = zip(turn.pauses, answers, strict=True)
                    moments = [
                        staged_moment(pause, p_over, threshold, delay_ms, timeout_ms)
                        for pause, p_over in pairs
                    ]
                    outcomes.append(outcome(turn, moments))
                found.append((f"{threshold}, {delay_ms:.0f} ms, {timeout_ms} ms", outcomes))
    return found
