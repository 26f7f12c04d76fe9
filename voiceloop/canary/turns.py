"""The counts of turns: for each variant sums that add up over calls and over servers. Pure.

Turns of one call are alike: same caller, same subject. What is drawn at random is the call, so the
error of a mean is taken over calls, from the products of each call's own sums, which are kept as
they grow: no turn has to be remembered, and the sums of several servers can be added.

Source: Deng, Knoblich and Lu, Applying the Delta Method in Metric Analytics (2018), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec


class Variant(StrEnum):
    """One of the two sets of workers that a turn may belong to."""

    BASELINE = "baseline"
    CANARY = "canary"


class Measure(StrEnum):
    """A quantity by which variants are compared."""

    GAP = "gap_ms"  # of turns that have one
    CUT_INS = "cut_ins"  # of turns: the agent began before the caller had ended
    FAILURES = "failures"  # of turns
    TOOL_CALLS = "tool_calls"  # of those that the model wrote: what could not be made as written
    TOKENS = "tokens"  # of turns that the model wrote
    TOKEN_MS = "token_ms"  # the mean time of one behind the first; told, and not judged

    @property
    def is_share(self) -> bool:
        """Whether each single value is 0 or 1."""
        return self in (Measure.CUT_INS, Measure.FAILURES, Measure.TOOL_CALLS)


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """One reply that is over. gap_ms, n_tokens, token_ms: None where there was none to measure."""

    gap_ms: float | None = None
    has_failed: bool = False
    n_tokens: int | None = None
    n_tool_calls: int = 0
    n_wrong_tool_calls: int = 0
    token_ms: float | None = None

    def values(self, most_gap_ms: float) -> Iterable[tuple[Measure, float, float]]:
        """Return for each measure that the turn has how many values, and their sum."""
        if self.gap_ms is not None:
            yield Measure.GAP, 1, min(self.gap_ms, most_gap_ms)
        yield Measure.CUT_INS, 1, 0.0  # a cut is told of by itself
        yield Measure.FAILURES, 1, float(self.has_failed)
        if self.n_tool_calls:
            yield Measure.TOOL_CALLS, self.n_tool_calls, float(self.n_wrong_tool_calls)
        if self.n_tokens is not None:
            yield Measure.TOKENS, 1, float(self.n_tokens)
        if self.token_ms is not None:
            yield Measure.TOKEN_MS, 1, self.token_ms


class Sums(msgspec.Struct, array_like=True):
    """The sums of one measure, over calls: each has n values that add up to a total.

    squares: of single values, where they are not shares.
    """

    n_calls: int = 0
    n: float = 0.0
    total: float = 0.0
    n_n: float = 0.0
    n_total: float = 0.0
    total_total: float = 0.0
    squares: float = 0.0

    def add(self, before: tuple[float, float], n: float, total: float, squares: float) -> None:
        """A call goes on: n, total: more of it. before: its sums so far."""
        n_before, total_before = before
        self.n_calls += n_before == 0 and n > 0
        self.n += n
        self.total += total
        self.n_n += (2 * n_before + n) * n
        self.n_total += n_before * total + total_before * n + n * total
        self.total_total += (2 * total_before + total) * total
        self.squares += squares

    def plus(self, other: Sums) -> Sums:
        fields = self.__struct_fields__
        return Sums(*(getattr(self, name) + getattr(other, name) for name in fields))

    @property
    def mean(self) -> float | None:
        return self.total / self.n if self.n else None


Turns = Mapping[Variant, Mapping[Measure, Sums]]


def added(counts: Iterable[Turns]) -> dict[Variant, dict[Measure, Sums]]:
    """The sums of several servers, as those of one."""
    found: dict[Variant, dict[Measure, Sums]] = {variant: {} for variant in Variant}
    for turns in counts:
        for variant, measures in turns.items():
            for measure, sums in measures.items():
                found[variant][measure] = found[variant].get(measure, Sums()).plus(sums)
    return found
