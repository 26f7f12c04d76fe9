"""The weights of `voiceloop.listening.endpointing`, fitted on recorded pauses.

Owns the logistic regression of "the turn is over" on the evidence and the silence so far, at a grid
of moments of every pause that is still silent then. What silence adds is linear between the knots
of `voiceloop.listening.release` and never falls. Ridge keeps the weight of evidence that the set
hardly shows near zero. Times enter as the listener sees them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from voiceloop.listening.endpointing import P_END, P_VOICE, TERMS, UNKNOWN_WORD, Hazard
from voiceloop.listening.evidence import Evidence, terms
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn
from voiceloop.listening.release import KNOTS_MS, Rise

MOMENTS_MS = (
    80, 100, 125, 150, 175, 200, 250, 300, 375, 450, 575, 700, 850, 1000, 1300, 1600, 1900,
)  # fmt: skip
RIDGE = 2.0
RIDGE_OF_RISES = 0.05  # their number is small and their data plenty
# Of a turn with a hesitation spliced in: it keeps the words honest, and its length is invented.
SPLICED_WEIGHT = 0.5

N_RAMPS = len(KNOTS_MS) - 1
FIRST_TERM = 1 + 2 * N_RAMPS  # the column behind the ramps of talk and dictation


@dataclass(frozen=True, slots=True)
class Samples:
    """rows [n, 1 + 2 * N_RAMPS + terms]: 1, ramps of talk, ramps of dictation, terms. over [n]: 1
    where the caller had finished. weights [n].
    """

    rows: NDArray[np.float64]
    over: NDArray[np.float64]
    weights: NDArray[np.float64]


def ramps(silence_ms: float) -> list[float]:
    """For each stretch between two knots, the share of it that so much silence has passed."""
    pairs = zip(KNOTS_MS, KNOTS_MS[1:], strict=False)
    return [min(max((silence_ms - a) / (b - a), 0.0), 1.0) for a, b in pairs]


def _evidence_at(pause: HeardPause, at_ms: float) -> Evidence | None:
    known = [step.evidence for step in pause.steps if step.from_ms <= at_ms]
    return known[-1] if known else None


def seen_by(evidence: Evidence, witnesses: frozenset[str]) -> Evidence | None:
    """The evidence without the witnesses that are not asked; None where one of them is missing."""
    if P_END in witnesses and evidence.p_end is None:
        return None
    if P_VOICE in witnesses and evidence.p_voice is None:
        return None
    return replace(
        evidence,
        p_end=evidence.p_end if P_END in witnesses else None,
        p_voice=evidence.p_voice if P_VOICE in witnesses else None,
    )


def unread(heard: Sequence[HeardTurn]) -> list[HeardTurn]:
    """The turns as they are heard of callers in a language of which no list knows a word.

    P(end) stays: it is to be that of a model which was never fitted to where turns end.
    """

    def of(evidence: Evidence) -> Evidence:
        words = (UNKNOWN_WORD,) * len(evidence.words)
        return replace(evidence, words=words, slot=None, p_voice=None, reads_words=False)

    def pause_of(pause: HeardPause) -> HeardPause:
        steps = tuple(replace(step, evidence=of(step.evidence)) for step in pause.steps)
        return replace(pause, steps=steps)

    return [replace(turn, pauses=tuple(map(pause_of, turn.pauses))) for turn in heard]


def samples_of(heard: Sequence[HeardTurn], witnesses: frozenset[str]) -> Samples:
    """Every moment of every pause at which all of the witnesses are known."""
    rows, over, weights = [], [], []
    none = [0.0] * N_RAMPS
    for turn in heard:
        weight = SPLICED_WEIGHT if "hesitation" in turn.turn.slices else 1.0
        for pause in turn.pauses:
            for silence_ms in MOMENTS_MS:
                at_ms = pause.since_ms + silence_ms
                if pause.resumed_ms is not None and at_ms >= pause.resumed_ms:
                    break
                evidence = _evidence_at(pause, at_ms)
                seen = None if evidence is None else seen_by(evidence, witnesses)
                if seen is None:
                    continue
                rise, values = ramps(silence_ms / seen.pace), terms(seen)
                both = (*none, *rise) if seen.is_dictation else (*rise, *none)
                rows.append([1.0, *both, *(values.get(name, 0.0) for name in TERMS)])
                over.append(float(at_ms >= turn.turn.end_ms))
                weights.append(weight)
    return Samples(np.array(rows), np.array(over), np.array(weights))


def fit(samples: Samples) -> Hazard:
    """Ridge logistic regression; the ramps' weights are kept from falling below 0."""
    ridge = np.full(samples.rows.shape[1], RIDGE)
    values = _minimum(samples, samples.rows, ridge)
    named = {name: float(v) for name, v in zip(TERMS, values[FIRST_TERM:], strict=True)}
    return Hazard({"bias": float(values[0])} | named, *_rises(values))


def fit_voice(samples: Samples, words: Hazard) -> Hazard:
    """The same with the voice as a witness beside a hazard of words, which keeps its proportions.

    Only turns in which people stopped by themselves tell of the voice, and these hold too few short
    answers, fillers and closing words to fit those anew: what is fitted is how much the words count
    as a whole, the voice, and what silence adds.
    """
    terms_of = samples.rows[:, FIRST_TERM:]
    score = words.weights["bias"] + terms_of @ np.array([words.weights[n] for n in TERMS])
    voice = terms_of[:, TERMS.index(P_VOICE)]
    rows = np.column_stack((samples.rows[:, :FIRST_TERM], score, voice))
    bias, *_, share, p_voice = values = _minimum(samples, rows, np.full(rows.shape[1], RIDGE))
    named = {name: float(share * weight) for name, weight in words.weights.items()}
    own = {"bias": float(bias + share * words.weights["bias"]), P_VOICE: float(p_voice)}
    return Hazard(named | own, *_rises(values))


def _minimum(
    samples: Samples, rows: NDArray[np.float64], ridge: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The values [columns] of least loss; rows begin with those of `Samples` up to the terms."""
    over, weights = samples.over, samples.weights
    ridge[0], ridge[1:FIRST_TERM] = 1e-3, RIDGE_OF_RISES

    def loss(w: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        logits = rows @ w
        p_over = 1.0 / (1.0 + np.exp(-np.clip(logits, -30, 30)))
        nats = weights @ (np.logaddexp(0.0, logits) - over * logits) + 0.5 * ridge @ w**2
        return float(nats), rows.T @ (weights * (p_over - over)) + ridge * w

    free = rows.shape[1] - FIRST_TERM
    bounds = [(None, None), *[(0.0, None)] * (FIRST_TERM - 1), *[(None, None)] * free]
    found = minimize(
        loss, np.zeros(rows.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": 2000, "maxfun": 4000},
    )  # fmt: skip
    values: NDArray[np.float64] = found.x
    return values


def _rises(values: NDArray[np.float64]) -> tuple[Rise, Rise]:
    """Return the rises of talk and of dictation."""
    return _rise(values[1 : 1 + N_RAMPS]), _rise(values[1 + N_RAMPS : FIRST_TERM])


def _rise(steps: NDArray[np.float64]) -> Rise:
    return Rise((0.0, *(round(float(x), 4) for x in np.cumsum(steps))))
