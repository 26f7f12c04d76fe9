"""The weights of `voiceloop.listening.endpointing`, fitted on recorded pauses.

Owns the logistic regression of "the turn is over" on the evidence and the silence so far, at a grid
of moments of every pause that is still silent then. Ridge keeps the weight of evidence that the set
hardly shows near zero. Times enter as the listener sees them. Where each eagerness ends a turn by
these weights is chosen in `voiceloop.listening.recipes.operating_points`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from voiceloop.listening.endpointing import Weights
from voiceloop.listening.evidence import Evidence, terms
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn

MOMENTS_MS = (100, 130, 160, 200, 250, 300, 400, 500, 650, 800, 1000, 1250, 1500, 1800)
RIDGE = 2.0
N_STEPS = 30

FIXED = ("bias", "silence")
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
    """Ridge logistic regression by Newton's method."""
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
    return Weights(float(weights[0]), float(weights[1]), **named)
