"""The weights of `voiceloop.endpointing`, fitted on recorded pauses.

Owns the logistic regression of "the turn is over" on the evidence and the silence so far, at a grid
of moments of every pause that is still silent then, and the choice of the threshold. Ridge keeps
the weight of evidence that the set hardly shows near zero. Times enter as the listener sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.pause_evidence import HeardPause, HeardTurn
from benchmarks.turn_frontier import hazard_moment, outcome, point
from voiceloop.endpointing import Evidence, Weights, WeightSets, terms

MOMENTS_MS = (100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1250, 1500, 1800)
RIDGE = 2.0
N_STEPS = 30
# What a setting may cost: shares of the fit's turns that are cut. Every hesitation of the set is
# 300-1200 ms long and falls anywhere between words, so most of them look like ends; a caller who
# never hesitates pays for those who do. The table of settings and their gaps stands in LOG.md.
MOST_CUT = 0.02  # of the turns without hesitation
MOST_HESITATIONS_CUT = 0.32
MOST_HESITATIONS_CUT_BLIND = 0.30  # without P(end)
THRESHOLDS = np.arange(-2.0, 6.01, 0.1)
# The commas of one breath ("everything, thank you, goodbye") pause for up to 230 ms, and the
# detector lets go 80 ms late: in calls 3 of 48 turns were cut there at 280 ms and none at 320.
LEAST_WAITS_MS = tuple(range(320, 441, 20))

FIXED = ("bias", "silence", "threshold", "least_wait_ms")
NAMES = tuple(field.name for field in fields(Weights) if field.name not in FIXED)


@dataclass(frozen=True, slots=True)
class Samples:
    """Rows: [1, silence in s, terms...]; over: 1 where the caller had finished."""

    rows: NDArray[np.float64]
    over: NDArray[np.float64]


def _evidence_at(pause: HeardPause, at_ms: float) -> Evidence | None:
    known = [step.evidence for step in pause.steps if step.from_ms <= at_ms]
    return known[-1] if known else None


def samples_of(heard: Sequence[HeardTurn], *, with_p_end: bool) -> Samples:
    """Every moment of every pause whose evidence belongs to that set of weights."""
    rows, over = [], []
    for turn in heard:
        for pause in turn.pauses:
            for silence_ms in MOMENTS_MS:
                at_ms = pause.since_ms + silence_ms
                if pause.resumed_ms is not None and at_ms >= pause.resumed_ms:
                    break
                evidence = _evidence_at(pause, at_ms)
                if evidence is None or (with_p_end and evidence.p_end is None):
                    continue
                if not with_p_end:
                    evidence = replace(evidence, p_end=None)
                values = terms(evidence)
                rows.append([1.0, silence_ms / 1000.0, *(values.get(name, 0.0) for name in NAMES)])
                over.append(float(at_ms >= turn.turn.end_ms))
    return Samples(np.array(rows), np.array(over))


def fit(samples: Samples) -> Weights:
    """Ridge logistic regression by Newton's method; the threshold is left at 0."""
    rows, over = samples.rows, samples.over
    ridge = np.full(rows.shape[1], RIDGE)
    ridge[:2] = 1e-3
    weights = np.zeros(rows.shape[1])
    for _ in range(N_STEPS):
        p_over = 1.0 / (1.0 + np.exp(-np.clip(rows @ weights, -30, 30)))
        slope = rows.T @ (over - p_over) - ridge * weights
        curve = (rows * (p_over * (1 - p_over))[:, None]).T @ rows + np.diag(ridge)
        weights = weights + np.linalg.solve(curve, slope)
    named = {name: float(value) for name, value in zip(NAMES, weights[2:], strict=True)}
    return Weights(float(weights[0]), float(weights[1]), 0.0, 0.0, **named)


def with_setting(sets: WeightSets, threshold: float, least_wait_ms: float) -> WeightSets:
    """Both sets end a turn at the same logit and silence: both are calibrated."""
    return WeightSets(
        replace(sets.with_p_end, threshold=threshold, least_wait_ms=least_wait_ms),
        replace(sets.without_p_end, threshold=threshold, least_wait_ms=least_wait_ms),
    )


def chosen_setting(
    heard: Sequence[HeardTurn], sets: WeightSets, most_hesitations_cut: float
) -> tuple[float, float]:
    """The lowest logit at which few enough hesitations are cut, and then the shortest least wait

    at which few enough of the other turns are; in ms.
    """

    def share_cut(turns: Sequence[HeardTurn], threshold: float, least_ms: float) -> float:
        moved = with_setting(sets, threshold, least_ms)
        outcomes = [outcome(t, [hazard_moment(p, moved) for p in t.pauses]) for t in turns]
        return point("", outcomes).cut if outcomes else 0.0

    plain = [turn for turn in heard if "hesitation" not in turn.turn.slices]
    hesitating = [turn for turn in heard if "hesitation" in turn.turn.slices]
    for threshold in (round(float(threshold), 2) for threshold in THRESHOLDS):
        longest = float(LEAST_WAITS_MS[-1])
        if share_cut(hesitating, threshold, longest) > most_hesitations_cut:
            continue
        for least_ms in LEAST_WAITS_MS:
            if share_cut(plain, threshold, float(least_ms)) <= MOST_CUT:
                return threshold, float(least_ms)
    return float(THRESHOLDS[-1]), float(LEAST_WAITS_MS[-1])


def fit_both(with_p_end: Sequence[HeardTurn], without_p_end: Sequence[HeardTurn]) -> WeightSets:
    """Both sets, each with the setting of its own turns."""
    plain = fit(samples_of(without_p_end, with_p_end=False))
    known = fit(samples_of(with_p_end, with_p_end=True)) if with_p_end else plain
    sets = WeightSets(known, plain)
    blind = chosen_setting(without_p_end, sets, MOST_HESITATIONS_CUT_BLIND)
    told = blind
    if with_p_end:
        told = chosen_setting(with_p_end, sets, MOST_HESITATIONS_CUT)
    return WeightSets(
        with_setting(sets, *told).with_p_end, with_setting(sets, *blind).without_p_end
    )


def as_toml(sets: WeightSets, comment: Sequence[str]) -> str:
    """The weights as the file that `voiceloop.endpointing` reads."""
    lines = [f"# {line}" for line in comment]
    for name in ("with_p_end", "without_p_end"):
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {round(v, 4)!r}" for key, v in asdict(getattr(sets, name)).items()]
    return "\n".join(lines) + "\n"
