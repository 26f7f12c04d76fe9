"""Cut turns against latency: what every endpointing policy is judged by.

A policy names, for each pause of a turn, the moment at which it would call the turn over. A turn is
cut if any such moment lies before the caller's true end; its latency is that of the first moment
after the true end, whether or not it was cut before, so that no policy gains by cutting slow turns.
Latency is averaged over all turns.

Source: eot-bench (Apache-2.0): threshold x action delay x timeout; the best are the frontier.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from voiceloop.call.turn_taking import RETRACT_S
from voiceloop.listening import release
from voiceloop.listening.endpointing import WORDS_BY_MS, WeightSets, cut_price
from voiceloop.listening.listener import P_END_GRACE_MS
from voiceloop.listening.recipes.endpointing_set import TRAIL_MS
from voiceloop.listening.recipes.heard_turn import CHUNK_MS, WINDOW_MS
from voiceloop.listening.recipes.pause_evidence import HeardPause, HeardTurn, Step
from voiceloop.listening.release import PATIENCE, Eagerness, Patience, Rise


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one turn. is_soft: it was cut, and each time the caller went on so soon that
    the answer was taken back.
    """

    cut: bool
    latency_ms: float
    is_soft: bool = False


@dataclass(frozen=True, slots=True)
class Point:
    """One setting of a policy over a set of turns; cut: share of them, 0..1."""

    setting: str
    latency_ms: float
    cut: float


def timer_moment(pause: HeardPause, timer_ms: float) -> float | None:
    """The fixed timer's decision in this pause."""
    return _in_pause(pause, max(pause.detected_ms, pause.since_ms + timer_ms))


@dataclass(frozen=True, slots=True)
class ScoredStep:
    """A step of a pause and what the weights make of it; least_ms: silence before it may end.

    cut_price: what a cut is worth of one in talk.
    """

    from_ms: float
    until_ms: float
    score: float
    rise: Rise
    least_ms: float
    cut_price: float


@dataclass(frozen=True, slots=True)
class ScoredPause:
    pause: HeardPause
    steps: tuple[ScoredStep, ...]


def scored(pause: HeardPause, sets: WeightSets) -> ScoredPause:
    """The pause weighed once, for any number of settings."""
    steps = []
    for index, step in enumerate(pause.steps):
        after = pause.steps[index + 1] if index + 1 < len(pause.steps) else None
        if after is not None and _awaits_p_end(step, after):
            continue
        until_ms = math.inf if after is None else after.from_ms
        hazard = sets.of(step.evidence)
        score, rise = hazard.score(step.evidence), hazard.rise(step.evidence)
        least_ms = 0.0 if step.evidence.words_are_full else WORDS_BY_MS
        price = cut_price(step.evidence)
        steps.append(ScoredStep(step.from_ms, until_ms, score, rise, least_ms, price))
    return ScoredPause(pause, tuple(steps))


def _awaits_p_end(step: Step, after: Step) -> bool:
    """The listener decides nothing while the EOT probability of these words is on its way."""
    is_next = step.evidence.words_are_full and step.evidence.p_end is None
    is_told = after.evidence.p_end is not None and after.evidence.words == step.evidence.words
    return is_next and is_told and after.from_ms - step.from_ms <= P_END_GRACE_MS


def moment_at(scored: ScoredPause, patience: Patience) -> float | None:
    """Our decision in this pause: the first step whose wait is over while it still holds."""
    since_ms = scored.pause.since_ms
    for step in scored.steps:
        passed_ms = step.from_ms - since_ms
        here = replace(patience, cut_cost_s=step.cut_price * patience.cut_cost_s)
        needed_ms = release.wait_ms(step.score, step.rise, here, passed_ms)
        over_ms = max(step.from_ms, since_ms + max(needed_ms, step.least_ms))
        at_ms = _released_ms(scored.pause, over_ms)
        if at_ms < step.until_ms:
            return _in_pause(scored.pause, at_ms)
    return None


def _released_ms(pause: HeardPause, over_ms: float) -> float:
    """Return when a turn ends whose wait is over: not while a sound has just begun, as the listener
    asks with each chunk and when the sound has had its time.
    """
    at_ms = over_ms
    while True:
        heard_ms = CHUNK_MS * (at_ms // CHUNK_MS)  # the latest chunk's end
        released_ms = over_ms + pause.returns_ms.get(heard_ms, 0.0)
        if released_ms <= at_ms:
            return at_ms
        at_ms = min(heard_ms + CHUNK_MS, released_ms)


def hazard_moment(
    pause: HeardPause, sets: WeightSets, eagerness: Eagerness = "auto"
) -> float | None:
    """Our decision in this pause at one of the eagernesses."""
    return moment_at(scored(pause, sets), PATIENCE[eagerness])


def staged_moment(
    pause: HeardPause, p_over: float | None, threshold: float, delay_ms: float, timeout_ms: float
) -> float | None:
    """A turn detector asked once, after delay_ms of silence: over at once, or after a timeout."""
    over = p_over is not None and p_over >= threshold
    return timer_moment(pause, delay_ms if over else timeout_ms)


def _in_pause(pause: HeardPause, at_ms: float) -> float | None:
    """None where the detector has heard by then that speech goes on: a window after it does."""
    if pause.resumed_ms is not None and at_ms >= pause.resumed_ms + WINDOW_MS:
        return None
    return at_ms


def outcome(heard: HeardTurn, moments: Iterable[float | None]) -> Outcome:
    """Judge the moments that a policy named, one for each pause."""
    end_ms = heard.turn.end_ms
    pairs = list(zip(heard.pauses, moments, strict=True))
    cuts = [(pause, at_ms) for pause, at_ms in pairs if at_ms is not None and at_ms < end_ms]
    after = [at_ms - end_ms for _, at_ms in pairs if at_ms is not None and at_ms >= end_ms]
    return Outcome(
        bool(cuts),
        min([TRAIL_MS, *after[:1]]),
        is_soft=bool(cuts) and all(_is_taken_back(pause, at_ms) for pause, at_ms in cuts),
    )


def _is_taken_back(pause: HeardPause, at_ms: float) -> bool:
    return pause.resumed_ms is not None and pause.resumed_ms - at_ms <= 1000.0 * RETRACT_S


def point(setting: str, outcomes: Sequence[Outcome]) -> Point:
    cut = sum(o.cut for o in outcomes) / len(outcomes)
    return Point(setting, sum(o.latency_ms for o in outcomes) / len(outcomes), cut)


def frontier(points: Iterable[Point]) -> list[Point]:
    """The settings that no other beats on both counts, fastest first."""
    best: list[Point] = []
    for candidate in sorted(points, key=lambda p: (p.latency_ms, p.cut)):
        if not best or candidate.cut < best[-1].cut:
            best.append(candidate)
    return best


def cut_at(best: Sequence[Point], latency_ms: float) -> float | None:
    """Share of turns cut at a mean latency, interpolated; None left of the frontier."""
    if not best or latency_ms < best[0].latency_ms:
        return None
    x = [p.latency_ms for p in best]
    return float(np.interp(latency_ms, x, [p.cut for p in best]))


def latency_at(best: Sequence[Point], cut: float) -> float | None:
    """The lowest mean latency with at most this share of turns cut; None where none is."""
    return next((p.latency_ms for p in best if p.cut <= cut), None)


def most_above(
    own: Sequence[Point], other: Sequence[Point], latencies_ms: Iterable[float]
) -> float | None:
    """The most that ``own`` cuts beyond ``other`` at any of these latencies that ``other`` reaches.

    At most 0: it lies nowhere above. None: one of them is left of ``own``, or of both.
    """
    margins = []
    for ms in latencies_ms:
        mine, theirs = cut_at(own, ms), cut_at(other, ms)
        if theirs is None:
            continue
        if mine is None:
            return None
        margins.append(mine - theirs)
    return max(margins, default=None)


def bootstrap_by_speaker(
    speakers: Sequence[str], n_draws: int, seed: int
) -> list[NDArray[np.intp]]:
    """Indices of the turns of speakers drawn with replacement, one array a draw."""
    groups: dict[str, list[int]] = {}
    for index, speaker in enumerate(speakers):
        groups.setdefault(speaker, []).append(index)
    members = [np.array(group) for group in groups.values()]
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(members), (n_draws, len(members)))
    return [np.concatenate([members[i] for i in draw]) for draw in draws]
