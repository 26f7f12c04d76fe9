"""The callers of a soak: they come at random, talk with recorded voices, and some just vanish."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from benchmarks.soak.bad_line import bad_line
from clients.call.open_call import CallOptions
from clients.call.result import CallResult
from clients.call.script import Utterance
from clients.call.simulated_call import SimulatedCall
from clients.connection import RealtimeConnection
from clients.errors import ClientError
from clients.loadgen import EXTRAS
from clients.server_process import ServerProcess

ABORTS = 0.05  # of the calls: the line drops in the middle, without a word
BAD_LINES = 0.05  # of the calls: everything comes late, then the line is dead
CALL_S = 60.0  # about how long the bundled call takes
Voices = list[tuple[str, tuple[Utterance, ...]]]


@dataclass(frozen=True, slots=True)
class Silence:
    """One turn: from the caller's end to the first sound of any kind.

    at_s: the caller's end, since the soak began. silent_ms: where there was nothing at all, for how
    long the caller waited. is_answered: by more than a fallback.
    """

    at_s: float
    silent_ms: float
    gap_ms: float | None
    is_answered: bool
    is_cut_in: bool


@dataclass(slots=True)
class Heard:
    """What all callers met. lost: why a call broke off that should not have."""

    silences: list[Silence] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    n_calls: int = 0
    n_refused: int = 0
    n_dropped: int = 0  # by the caller's own line


class Callers:
    """Places calls on one server until `until_s`; times are seconds since `started_at`."""

    def __init__(
        self, server: ServerProcess, voices: Voices, at_once: int, until_s: float, seed: int
    ) -> None:
        self.heard = Heard()
        self._server = server
        self._voices = voices
        self._at_once = at_once
        self._until_s = until_s
        self._rng = random.Random(f"callers/{seed}")
        self._n_open = 0
        self._started_at = time.monotonic()

    def _now_s(self) -> float:
        return time.monotonic() - self._started_at

    async def run(self) -> None:
        """Calls by a Poisson process, `at_once` on average; one of them lasts the whole time."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._long_call())
            while self._now_s() < self._until_s - CALL_S:
                if self._n_open < self._at_once * 2:
                    group.create_task(self._call(self.heard.n_calls))
                    self.heard.n_calls += 1
                rate = max(1, self._at_once - 1) / CALL_S  # one line is the long call's
                await asyncio.sleep(self._rng.expovariate(rate))

    async def _long_call(self) -> None:
        name, utterances = self._voices[0]
        n_rounds = int(self._until_s / CALL_S) + 1
        self.heard.n_calls += 1
        call = await self._open(self._server.url, name, utterances * n_rounds, 0)
        if call is not None:
            await self._play(call, self._until_s - self._now_s(), is_dropped=False)

    async def _call(self, number: int) -> None:
        name, utterances = self._voices[number % len(self._voices)]
        kind = self._rng.random()
        after_s = self._rng.uniform(0.2, 0.9) * CALL_S
        if kind < BAD_LINES:
            await self._bad_call(name, utterances, number, after_s)
            return
        call = await self._open(self._server.url, name, utterances, number)
        if call is None:
            return
        is_dropped = kind < BAD_LINES + ABORTS
        await self._play(call, after_s if is_dropped else 3 * CALL_S, is_dropped=is_dropped)

    async def _bad_call(
        self, name: str, utterances: tuple[Utterance, ...], number: int, after_s: float
    ) -> None:
        """Its silences are its own line's: they do not count."""
        async with bad_line(self._server.port, self._rng) as (line, url):
            call = await self._open(url, name, utterances, number)
            if call is None:
                return
            async with self._counted():
                task = asyncio.create_task(call[1].run())
                await asyncio.wait({task}, timeout=after_s)
                line.is_dead = True
                await asyncio.wait({task}, timeout=5.0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            self.heard.n_dropped += 1

    async def _open(
        self, url: str, voice: str, utterances: tuple[Utterance, ...], number: int
    ) -> tuple[RealtimeConnection, SimulatedCall] | None:
        try:
            connection = await RealtimeConnection.open(url, extras=EXTRAS)
        except ClientError:
            self.heard.n_refused += 1
            return None
        options = CallOptions(seed=number)
        return connection, SimulatedCall(connection, utterances, voice=voice, options=options)

    async def _play(
        self, opened: tuple[RealtimeConnection, SimulatedCall], for_s: float, *, is_dropped: bool
    ) -> None:
        """Play a call for at most so long; what it heard until then counts."""
        connection, call = opened
        began_s = self._now_s()
        async with self._counted():
            task = asyncio.create_task(call.run())
            await asyncio.wait({task}, timeout=for_s)
            if not task.done():
                connection.abort()
                task.cancel()
            [ended] = await asyncio.gather(task, return_exceptions=True)
        if is_dropped:
            self.heard.n_dropped += 1
        elif isinstance(ended, Exception):
            self.heard.lost.append(f"after {self._now_s():.0f} s: {ended}")
        self._count(call.so_far(), began_s)

    def _count(self, result: CallResult | None, began_s: float) -> None:
        if result is None:
            return
        waited_ms = 1000.0 * CallOptions().answer_timeout_s
        for turn in result.turns:
            silent_ms = waited_ms if turn.silent_ms is None else turn.silent_ms
            self.heard.silences.append(
                Silence(
                    began_s + turn.end_at, 0.0 if turn.cut_in else silent_ms,
                    turn.gap_ms, turn.answered, turn.cut_in,
                )
            )  # fmt: skip

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self._n_open += 1
        try:
            yield
        finally:
            self._n_open -= 1
