"""Calls that go on while something befalls the cluster, and what it cost them."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.cluster.spoken_call import SpokenCall
from benchmarks.cluster.text_call import TypedCall

N_AGENTS = 8  # instructions that calls begin with, by Zipf


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What one kind of fault cost. silent_s: the longest that a caller waited for an answer.

    placed_again: calls that broke with nothing to show. p95_s: of all these waits. rest_s: until
    the cluster was as it is wanted again, in the median and at most; n_restless: times that it was
    not in `SETTLED_WITHIN_S`. p95_ratio: that after a change on purpose, over that before.
    unanswered: turns of callers who speak; their waits are gaps.
    """

    fault: str
    times: int
    calls: int
    lost: int
    resumed: int
    placed_again: int
    p95_s: float
    silent_s: float
    took_s: float
    rest_s: tuple[float, float] | None = None
    n_restless: int = 0
    p95_ratio: float | None = None
    why: tuple[str, ...] = ()
    p95_before_s: float | None = None
    unanswered: int = 0


class Caller(Protocol):
    """One call: how long each answer took from when on, and what became of the line."""

    waits: list[tuple[float, float]]
    n_unanswered: int
    n_resumed: int
    n_placed_again: int
    lost: str

    def run(self) -> Awaitable[object]: ...


def typed(url: str, draw: random.Random) -> Caller:
    return call(url, draw, 40, 0.25)


def spoken(url: str, draw: random.Random) -> Caller:
    return SpokenCall(url, draw.randrange(1000))


def call(
    url: str, draw: random.Random, n_turns: int, pause_s: float, question: str = "please"
) -> TypedCall:
    agent = draw.choices(range(N_AGENTS), [1 / (1 + rank) for rank in range(N_AGENTS)])[0]
    return TypedCall(url, f"You are agent {agent}. " * 40, n_turns, pause_s, question)


class Load:
    """Calls that go on, one after the other, until it is left."""

    def __init__(
        self, url: str, at_once: int, begun: Callable[[str, random.Random], Caller] = typed
    ) -> None:
        self.ended: list[Caller] = []
        self._url, self._at_once, self._begun = url, at_once, begun
        self._is_over = False
        self._began_s = time.monotonic()
        self._callers: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Load:
        self._callers = [asyncio.create_task(self._call_on(n)) for n in range(self._at_once)]
        return self

    async def __aexit__(self, *raised: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._callers)

    async def _call_on(self, seed: int) -> None:
        draw = random.Random(seed)
        await asyncio.sleep(draw.random())
        while not self._is_over:
            one = self._begun(self._url, draw)
            await one.run()
            self.ended.append(one)

    def result(
        self,
        fault: str,
        times: int,
        *,
        rests_s: Sequence[float | None] = (),
        changed_s: float | None = None,
    ) -> FaultResult:
        """rests_s: of each time, None where the cluster did not come to rest; changed_s: when what
        is called a fault was begun on purpose."""
        lost = [one.lost for one in self.ended if one.lost]
        waits = [wait for one in self.ended for wait in one.waits]
        rested_s = sorted(one for one in rests_s if one is not None)
        ratio = before_s = None
        if changed_s is not None:
            before = [wait_s for asked_s, wait_s in waits if asked_s < changed_s]
            after = [wait_s for asked_s, wait_s in waits if asked_s >= changed_s]
            before_s = round(p95(before), 3)
            ratio = round(p95(after) / p95(before), 3)
        return FaultResult(
            fault,
            times,
            calls=len(self.ended),
            lost=len(lost),
            resumed=sum(one.n_resumed for one in self.ended),
            placed_again=sum(one.n_placed_again for one in self.ended),
            p95_s=round(p95([wait_s for _, wait_s in waits]), 3),
            silent_s=round(max((wait_s for _, wait_s in waits), default=0.0), 2),
            took_s=round(time.monotonic() - self._began_s, 1),
            rest_s=(statistics.median(rested_s), rested_s[-1]) if rested_s else None,
            n_restless=len(rests_s) - len(rested_s),
            p95_ratio=ratio,
            why=tuple(lost[:3]),
            p95_before_s=before_s,
            unanswered=sum(one.n_unanswered for one in self.ended),
        )


def p95(waits_s: list[float]) -> float:
    return sorted(waits_s)[int(0.95 * (len(waits_s) - 1))] if waits_s else math.nan
