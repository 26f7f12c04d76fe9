"""More calls than the machine carries: ``python -m benchmarks.overload [--times 4] [--check]``.

First callers are added one by one to a server of the embedded preset until it takes no more: what
it carries, and the gap there. When these have hung up, so many times as many come within ten
seconds. Told are the gap of those that were let in beside the one before, how long the others
waited for their refusal, and calls that the server broke off. A cold server (``--cold``) has not
learnt what it carries: a fresh one is started for the rush. With ``--fakes`` the models are
scripted, and a number bounds the calls (``--most``): what the gateway alone does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict, dataclass, field

from websockets.exceptions import InvalidStatus

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.call.open_call import CallOptions
from clients.call.result import TurnResult
from clients.call.script import Utterance
from clients.call.simulated_call import SimulatedCall
from clients.connection import RealtimeConnection, own_key
from clients.errors import ClientError, ConnectionFailed
from clients.loadgen import EXTRAS, Load, voices_of
from clients.report.percentiles import Distribution
from clients.server_process import SERVE, ServerProcess, running_server

FAKES = (sys.executable, "-m", "benchmarks.calls.fake_server")
APART_S = 2.3  # between two callers that are added: the load of the last one is to be seen
RUSH_S = 10.0
REFUSED = 503
MOST_TIMES_GAP, MOST_REFUSAL_MS = 1.3, 50.0
Voices = list[tuple[str, tuple[Utterance, ...]]]


@dataclass(frozen=True, slots=True)
class Turn:
    """at_s: the caller's onset, on this process's clock."""

    at_s: float
    gap_ms: float | None
    is_cut_in: bool


@dataclass(slots=True)
class Phase:
    """What some callers met. last_let_in_s: when the last of them got a line."""

    turns: list[Turn] = field(default_factory=list)
    refusals_ms: list[float] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    n_let_in: int = 0
    last_let_in_s: float = 0.0

    def gaps(self, since_s: float = 0.0) -> Distribution:
        """Of turns that were answered and not cut into."""
        return Distribution.of(
            [
                turn.gap_ms
                for turn in self.turns
                if turn.gap_ms is not None and not turn.is_cut_in and turn.at_s >= since_s
            ]
        )


@dataclass(slots=True)
class Found:
    filling: Phase = field(default_factory=Phase)
    rush: Phase = field(default_factory=Phase)


class Callers:
    """Place calls on one server, each in the next voice."""

    def __init__(self, server: ServerProcess, voices: Voices, seed: int) -> None:
        self._server = server
        self._voices = voices
        self._seed = seed
        self._n_dialled = 0

    async def dial(self, phase: Phase, tasks: asyncio.TaskGroup) -> bool:
        """Another call, which is played in a task; False where it is refused."""
        index, url = self._n_dialled, self._server.url
        self._n_dialled += 1
        dialled_s = time.monotonic()
        try:
            connection = await RealtimeConnection.open(url, key=own_key(url), extras=EXTRAS)
        except ConnectionFailed as error:
            cause = error.__cause__
            if not isinstance(cause, InvalidStatus) or cause.response.status_code != REFUSED:
                phase.broken.append(str(error))
                return False
            phase.refusals_ms.append(1000.0 * (time.monotonic() - dialled_s))
            return False
        phase.n_let_in += 1
        phase.last_let_in_s = time.monotonic()
        tasks.create_task(self._play(phase, connection, index))
        return True

    async def _play(self, phase: Phase, connection: RealtimeConnection, index: int) -> None:
        voice, said = self._voices[index % len(self._voices)]
        began_s, options = time.monotonic(), CallOptions(seed=self._seed + index)
        try:
            call = await SimulatedCall(connection, said, voice=voice, options=options).run()
        except ClientError as error:
            phase.broken.append(str(error))
            return
        phase.turns += [_turn(turn, began_s) for turn in call.turns]


def _turn(turn: TurnResult, began_s: float) -> Turn:
    return Turn(began_s + turn.onset_at, turn.gap_ms, turn.cut_in)


async def fill(phase: Phase, callers: Callers, most: int) -> None:
    """One caller more and more, until the first is refused; returns when all have hung up."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(most):
            if not await callers.dial(phase, tasks):
                return
            await asyncio.sleep(APART_S)


async def rush(phase: Phase, callers: Callers, n_calls: int) -> None:
    """So many within ten seconds; returns when those that were let in have hung up."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(n_calls):
            tasks.create_task(callers.dial(phase, tasks))
            await asyncio.sleep(RUSH_S / n_calls)


async def measure(found: Found, chosen: argparse.Namespace) -> None:
    """Fill `found`. Raises: ClientError: a server did not start."""
    command, arguments = SERVE, ("--preset", "embedded")
    if chosen.fakes:
        command, arguments = FAKES, ("--most", str(chosen.most))
    voices = voices_of(Load(n_turns=chosen.turns))
    log = RESULTS / "overload.log"
    async with running_server(arguments, command=command, log=log) as server:
        callers = Callers(server, voices, chosen.seed)
        await fill(found.filling, callers, chosen.most)
        n_carried = found.filling.n_let_in
        print(f"{n_carried} calls were let in, one after the other", flush=True)
        if not chosen.cold:
            await rush(found.rush, callers, round(chosen.times * n_carried))
            return
    async with running_server(arguments, command=command, log=log) as server:
        callers = Callers(server, voices, chosen.seed)
        await rush(found.rush, callers, round(chosen.times * n_carried))


def bars_of(found: Found) -> list[Bar]:
    filling, rushed = found.filling, found.rush
    full = filling.gaps(filling.last_let_in_s).p95 or filling.gaps().p95
    gap, refusals = rushed.gaps(), Distribution.of(rushed.refusals_ms)
    ratio = gap.p95 / full if gap.p95 is not None and full else None
    return [
        Bar("gap p95 of those let in, over that at capacity", ratio, MOST_TIMES_GAP, "x", n=gap.n),
        Bar("a refusal takes, p99", refusals.p99, MOST_REFUSAL_MS, n=refusals.n),
        Bar("calls that the server broke off", float(len(rushed.broken)), 0, ""),
    ]


def show(name: str, phase: Phase) -> None:
    gap, refusals = phase.gaps(), Distribution.of(phase.refusals_ms)
    n_cut = sum(turn.is_cut_in for turn in phase.turns)
    n_unanswered = sum(turn.gap_ms is None for turn in phase.turns)
    print(
        f"{name}: {phase.n_let_in} let in, {refusals.n} refused after p50 {refusals.p50}, most "
        f"{refusals.most} ms; gap p50 {gap.p50}, p95 {gap.p95} ms of {gap.n} turns, {n_cut} cut "
        f"into, {n_unanswered} unanswered; {len(phase.broken)} broken {phase.broken[:1]}"
    )


def main() -> int:
    command = Benchmark(
        "overload", "So many times the calls that this machine carries.", seed="the room noise"
    )
    command.amount("--times", 4.0, "times", "as many as it carries", above=1.0)
    command.count("--most", 64, "calls at once at most")
    command.count("--turns", None, "only the first turns of each call")
    command.switch("--fakes", "scripted models in their place")
    command.switch("--cold", "the rush meets a fresh server")
    chosen = command.parse()
    found = Found()
    command.measure(measure(found, chosen))
    show("one by one", found.filling)
    if not found.rush.turns:
        return command.without_results("no call of the rush was let in and answered")
    show("the rush", found.rush)
    settings = {key: getattr(chosen, key) for key in ("times", "most", "turns", "fakes", "cold")}
    figures = {"filling": asdict(found.filling), "rush": asdict(found.rush)}
    return command.finish(settings, bars_of(found), **figures)


if __name__ == "__main__":
    sys.exit(run(main))
