"""The differences between two runs of one call and, over many calls, how much of them is chance.

Owns which turns are the same turn, what of it is compared, and the bounds. Pure.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

SAME_TURN_MS = 1500.0  # two ends of speech that are nearer are of one turn of the caller
LEVEL = 1.96  # of a normal distribution, two-sided: 95 %
N_DRAWS = 1000
ASPECTS = ("words", "cuts", "replies", "tools")


@dataclass(frozen=True, slots=True)
class Pair:
    """One turn of the caller in two runs; None where a run has no such turn."""

    call: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    def of(self, aspect: str) -> tuple[Any, Any]:
        """Return what each run has of it."""
        return _of(self.before, aspect), _of(self.after, aspect)

    def differs(self, aspect: str) -> bool:
        before, after = self.of(aspect)
        return bool(before != after)

    @property
    def gap_difference_ms(self) -> float | None:
        before, after = self.before, self.after
        if before is None or after is None:
            return None
        one, other = before.get("gap_ms"), after.get("gap_ms")
        return float(other) - float(one) if one is not None and other is not None else None


@dataclass(frozen=True, slots=True)
class Share:
    """n_differ of n turns. low, high: of the share, with 95 % (Wilson's interval)."""

    n_differ: int
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the gap, after less before, in ms: the median, with the bounds of 95 %
    (bootstrap).
    """

    n: int
    median_ms: float | None
    low_ms: float | None
    high_ms: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    pairs: tuple[Pair, ...]

    def share(self, aspect: str) -> Share:
        """aspect: one of ASPECTS, or "any"."""
        chosen = ASPECTS if aspect == "any" else (aspect,)
        n_differ = sum(any(map(pair.differs, chosen)) for pair in self.pairs)
        return wilson(n_differ, len(self.pairs))

    @property
    def gap(self) -> Difference:
        found = [ms for pair in self.pairs if (ms := pair.gap_difference_ms) is not None]
        return bootstrap(found)

    def told(self) -> dict[str, Any]:
        """Return it in plain values."""
        shares = {name: asdict(self.share(name)) for name in (*ASPECTS, "any")}
        turns = [
            {
                "call": pair.call,
                "at_ms": _end_ms(pair.before or pair.after or {}),
                "gap_difference_ms": pair.gap_difference_ms,
                **{name: pair.of(name) for name in ASPECTS if pair.differs(name)},
            }
            for pair in self.pairs
            if any(map(pair.differs, ASPECTS))
        ]
        return {"turns": len(self.pairs), **shares, "gap": asdict(self.gap), "differing": turns}


def compare(call: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[Pair, ...]:
    """The caller's turns of both runs, in order."""
    left, right = _turns(before), _turns(after)
    found: list[tuple[float, Pair]] = []
    for turn in left:
        ends_ms = _end_ms(turn)
        near = [one for one in right if abs(_end_ms(one) - ends_ms) < SAME_TURN_MS]
        same = min(near, key=lambda one: abs(_end_ms(one) - ends_ms), default=None)
        if same is not None:
            right.remove(same)
        found.append((ends_ms, Pair(call, turn, same)))
    found += [(_end_ms(turn), Pair(call, None, turn)) for turn in right]
    return tuple(pair for _, pair in sorted(found, key=lambda one: one[0]))


def _turns(notes: dict[str, Any]) -> list[dict[str, Any]]:
    """Answers to what the caller said; with what their tools were called with."""
    turns = [dict(turn) for turn in notes["turns"] if turn.get("heard")]
    for turn in turns:
        begins_ms, ends_ms = _end_ms(turn), float(turn.get("at_ms", 0.0))
        turn["called"] = [
            [call.get("name"), call.get("arguments")]
            for call in notes["calls"]
            if begins_ms <= float(call.get("at_ms", 0.0)) <= ends_ms
        ]
    return turns


def _end_ms(turn: dict[str, Any]) -> float:
    marks = turn.get("marks_ms") or {}
    return float(marks.get("speech_end", turn.get("at_ms", 0.0)))


def _of(turn: dict[str, Any] | None, aspect: str) -> Any:
    if turn is None:
        return None
    match aspect:
        case "words":
            return " ".join(str(turn.get("heard", "")).split())
        case "cuts":
            return turn.get("cut")
        case "tools":
            return turn.get("called") or []
    return " ".join(str(turn.get("said", "")).split())


def wilson(n_differ: int, n: int) -> Share:
    """Source: E. B. Wilson 1927."""
    if not n:
        return Share(0, 0, 0.0, 1.0)
    share, square = n_differ / n, LEVEL**2
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = LEVEL / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Share(n_differ, n, round(max(0.0, middle - half), 4), round(min(1.0, middle + half), 4))


def bootstrap(values: Sequence[float]) -> Difference:
    """Return the bounds of the median by bootstrap. Source: B. Efron 1979; percentiles of N_DRAWS
    draws, the same each time.
    """
    if not values:
        return Difference(0, None, None, None)
    draw = random.Random(0)
    drawn = sorted(median(draw.choices(values, k=len(values))) for _ in range(N_DRAWS))
    low, high = drawn[round(0.025 * N_DRAWS)], drawn[round(0.975 * N_DRAWS) - 1]
    return Difference(len(values), round(median(values), 1), round(low, 1), round(high, 1))
