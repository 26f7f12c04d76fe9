"""What the server sees of its load, and what it leaves out for it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import cast

import httpx
import msgspec
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.fakes import instant_backends
from tests.voiceloop.server.test_app import event, running, until
from voiceloop.admission.overload import Level
from voiceloop.admission.room import LEAST_CALLS, Room, for_new_callers
from voiceloop.agent import AgentConfig
from voiceloop.call.lifetime import BEGINS_WITHIN_S
from voiceloop.call.session import Session
from voiceloop.config import Config, Limits
from voiceloop.errors import Overloaded
from voiceloop.operation import WorkerLoad
from voiceloop.server import load_watch
from voiceloop.server.app import Gateway
from voiceloop.server.load_watch import LoadWatch, read_memory_pressure, two_latest
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.record import Mark, TurnEnd, TurnRecord

BUSY = WorkerLoad("speech", ("recognizer", "voice"), "ready", busy=0.93, oldest_s=0.9)
ENGINE = WorkerLoad("engine", ("engine",), "ready", totals={"kv_blocks": 8, "kv_blocks_held": 2})


class Watched:
    """A watch whose clock and workers the test sets."""

    def __init__(self, workers: Sequence[WorkerLoad] = ()) -> None:
        self.now_s = 0.0
        self.n_talking = 2
        self.workers: Sequence[WorkerLoad] = workers
        self.metrics = Metrics()
        self.watch = LoadWatch(
            lambda: self.workers,
            lambda: [("words", 0.2)],
            lambda: self.n_talking,
            Room(64, 0.5),
            self.metrics,
            lambda: self.now_s,
            processor_s=lambda: 0.1 * self.now_s,
            memory_pressure=lambda: 0.0,
        )

    def pass_time(self, seconds: float) -> Level:
        for _ in range(round(seconds / 0.25)):
            self.now_s += 0.25
            self.watch.tick()
        return self.watch.level

    def sample(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, labels)


def test_of_several_workers_of_a_role_none_is_the_worst() -> None:
    idle = WorkerLoad("speech 2", ("recognizer", "voice"), "ready", busy=0.13)
    lost = WorkerLoad("speech 3", ("recognizer", "voice"), "restarting")
    watched = Watched((BUSY, idle, lost))
    watched.pass_time(0.25)
    assert watched.watch.load.busy == pytest.approx(0.53)
    assert watched.watch.headroom > 0
    watched.n_talking = 1000
    assert watched.watch.headroom == 0.0


def test_a_change_of_level_is_a_number_and_a_line_that_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    watched = Watched((BUSY, ENGINE))
    assert watched.pass_time(3.0) is Level.BUSY
    assert watched.sample("voiceloop_ladder_level") == 1
    assert watched.sample("voiceloop_ladder_moves_total", level="busy") == 1
    assert "overload: busy after normal: busy 0.93" in caplog.text
    watched.workers = (ENGINE,)
    assert watched.pass_time(5.0) is Level.NORMAL
    assert watched.sample("voiceloop_ladder_level") == 0
    assert "overload: normal after busy" in caplog.text


def test_a_late_event_loop_is_load_and_one_late_moment_is_not() -> None:
    watched = Watched()
    watched.watch.observe_lag(0.4)
    for _ in range(39):
        watched.watch.observe_lag(0.001)
    watched.pass_time(0.25)
    assert watched.watch.load.loop_lag_s == 0.001
    for _ in range(39):
        watched.watch.observe_lag(0.09)
    assert watched.pass_time(3.0) is Level.BUSY


@pytest.mark.parametrize("n_talking", [0, 1])
def test_a_busy_process_is_no_load_where_nobody_waits_for_another(n_talking: int) -> None:
    watched = Watched((msgspec.structs.replace(BUSY, busy=1.0),))
    watched.n_talking = n_talking
    assert watched.pass_time(60.0) is Level.NORMAL
    watched.n_talking = 2
    assert watched.pass_time(3.0) is Level.BUSY


def test_the_two_latest_calls_are_told_apart_whichever_workers_owe_them() -> None:
    def late(**overdue_s: float) -> WorkerLoad:
        return WorkerLoad("w", ("engine",), "ready", overdue_s=overdue_s)

    assert two_latest(()) == (0.0, 0.0)
    assert two_latest((late(a=2.0), late(a=4.0))) == (4.0, 0.0)
    assert two_latest((late(a=2.0, c=0.5), late(a=4.0, b=3.0))) == (4.0, 3.0)
    watched = Watched((late(a=2.0), late(a=4.0)))
    assert watched.pass_time(20.0) is Level.BUSY
    watched.workers = (late(a=4.0), late(b=3.5))
    assert watched.pass_time(20.0) is Level.FULL


@pytest.mark.virtual_time
async def test_the_loop_is_looked_at_and_ticks_follow(clock: Callable[[], float]) -> None:
    metrics, ticks = Metrics(), []
    watch = LoadWatch(tuple, tuple, lambda: 0, Room(64, 0.5), metrics, clock)
    task = asyncio.create_task(watch.run(lambda: ticks.append(clock())))
    await asyncio.sleep(1.02)
    task.cancel()
    await asyncio.wait([task])
    assert len(ticks) == 4
    assert metrics.registry.get_sample_value("voiceloop_loop_lag_seconds_count") == 20


def test_the_pressure_of_memory_is_read_where_the_kernel_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory"
    monkeypatch.setattr(load_watch, "PRESSURE_FILE", str(file))
    assert read_memory_pressure() == 0.0
    file.write_text("some avg10=12.50 avg60=1.00 avg300=0 total=9\nfull avg10=3.00 avg60=0\n")
    assert read_memory_pressure() == 12.5


def test_late_answers_under_load_make_less_room() -> None:
    watched = Watched((BUSY,))

    def answer_late() -> None:
        for number in range(20):
            record = TurnRecord(str(number))
            record.mark(Mark.ENDPOINT_DECISION, 0.0)
            record.mark(Mark.FIRST_BYTE_ON_WIRE, 0.9)
            record.finish(TurnEnd("completed"))
            watched.metrics.observe_turn(record)

    answer_late()
    watched.pass_time(0.25)
    assert watched.watch.room.n_calls > 1  # the machine was not known to be under load
    watched.pass_time(3.0)
    assert watched.watch.level >= Level.BUSY
    answer_late()
    watched.pass_time(0.25)
    assert watched.watch.room.n_calls == 1  # of two calls that talked, a tenth fewer


# --- served ---------------------------------------------------------------------------------------


def climb(gateway: Gateway, level: Level) -> None:
    """Bring a server's level there."""
    gateway.load_watch._overload.level = level


async def test_a_new_call_is_refused_in_overload_and_told_when_to_come_back() -> None:
    async with running() as server:
        climb(server.gateway, Level.FULL)
        with pytest.raises(InvalidStatus) as caught:
            async with server.connect():
                pass
        assert caught.value.response.status_code == 503
        assert 2 <= int(caught.value.response.headers["Retry-After"]) <= 12
        async with httpx.AsyncClient(base_url=server.http) as http:
            ready = await http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["reason"] == "the machine is overloaded (level full)"
            assert (await http.get("/healthz")).status_code == 200
        climb(server.gateway, Level.BUSY)
        async with server.connect():
            pass


async def test_a_caller_whose_call_has_just_ended_is_let_back_in() -> None:
    async with running() as server:
        async with server.connect() as client:
            call_id = (await event(client))["session"]["id"]
        async with asyncio.timeout(5):
            while server.gateway.n_sessions:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
        climb(server.gateway, Level.FULL)
        async with server.connect(f"?voiceloop.returns={call_id}") as client:
            await event(client)
        for other in (call_id, "sess_invented"):
            with pytest.raises(InvalidStatus):
                async with server.connect(f"?voiceloop.returns={other}"):
                    pass


async def test_one_call_more_than_the_machine_carries_is_refused_unless_load_is_not_asked() -> None:
    for asks, n_let_in in ((True, LEAST_CALLS), (False, 8)):
        config = Config(limits=Limits(admit_by_load=asks))
        async with running(config) as server:
            climb(server.gateway, Level.BUSY)
            server.gateway.load_watch.room.observe(0.0, 0.0, 0, {}, is_calm=False)
            calls = []
            for _ in range(8):
                try:
                    calls.append(await server.connect())
                except InvalidStatus as error:
                    told = json.loads(error.response.body or b"")["error"]["message"]
                    assert "this machine carries 4 calls" in told
            assert len(calls) == n_let_in
            for call in calls:
                await call.close()


class Ahead:
    """A clock that tests may put forward."""

    s = 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() + self.s


SAYS = json.dumps({"type": "response.create", "response": {"output_modalities": ["text"]}})


async def test_thirty_lines_that_say_nothing_leave_room_and_then_find_none_themselves() -> None:
    ahead = Ahead()
    async with running(clock=ahead) as server, AsyncExitStack() as lines:

        async def dial() -> ClientConnection:
            return await lines.enter_async_context(server.connect("?greeting=0"))

        climb(server.gateway, Level.BUSY)
        server.gateway.load_watch.room.observe(0.0, 0.0, 0, {}, is_calm=False)  # four calls
        silent = []
        for _ in range(15):
            silent += [await dial(), await dial()]
            ahead.s += BEGINS_WITHIN_S
        caller = await dial()
        await caller.send(SAYS)
        await until(caller, "response.done")
        with pytest.raises(InvalidStatus):
            await dial()
        await silent[0].send(SAYS)  # there is no place for it either
        assert (await until(silent[0], "error"))["error"]["code"] == "server_overloaded"
        with pytest.raises(ConnectionClosed) as closed:
            await event(silent[0])
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
        await caller.close()
        await silent[1].send(SAYS)
        await until(silent[1], "response.done")


async def test_where_all_places_are_taken_a_line_that_says_nothing_gives_way_to_a_caller() -> None:
    ahead, config = Ahead(), Config(limits=Limits(max_sessions=3))
    async with running(config, clock=ahead) as server, AsyncExitStack() as lines:
        speaks, *silent = [
            await lines.enter_async_context(server.connect("?greeting=0")) for _ in range(3)
        ]
        await speaks.send(SAYS)
        await until(speaks, "response.done")
        with pytest.raises(InvalidStatus):
            await server.connect()  # they have dialled just now, and may speak yet
        ahead.s += BEGINS_WITHIN_S
        async with httpx.AsyncClient(base_url=server.http) as http:
            assert (await http.get("/readyz")).status_code == 200
        caller = await lines.enter_async_context(server.connect("?greeting=0"))
        await caller.send(SAYS)
        await until(caller, "response.done")
        assert (await until(silent[0], "error"))["error"]["code"] == "server_overloaded"
        await speaks.send(SAYS)
        await until(speaks, "response.done")


async def test_requests_over_http_give_way_to_calls() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with (
        running() as server,
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        climb(server.gateway, Level.FULL)  # and nobody talks
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        climb(server.gateway, Level.NORMAL)
        async with server.connect() as client:
            await event(client)
            climb(server.gateway, Level.FULL)
            refused = await http.post("/v1/chat/completions", json=body)
            assert refused.status_code == 503 and "Retry-After" in refused.headers
            climb(server.gateway, Level.BUSY)
            assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200


async def test_a_server_that_lets_nobody_in_has_no_headroom_in_its_metrics_either() -> None:
    async with running() as server:
        gateway = server.gateway

        def told() -> float | None:
            gateway._follow_load()
            return gateway.metrics.registry.get_sample_value("voiceloop_headroom_ratio")

        assert told() == 1.0
        gateway.is_ready = lambda: False  # a model is gone
        assert told() == 0.0
        gateway.is_ready = lambda: True
        async with server.connect() as call:
            await event(call)
            assert told() == gateway.report()["headroom"] < 1.0
        gateway.admission.drain()
        assert told() == 0.0


async def test_readyz_tells_what_an_operator_asks_first() -> None:
    backends = replace(instant_backends(), workers=lambda: (BUSY, ENGINE))
    async with (
        running(backends=backends) as server,
        server.connect(),
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        told = (await http.get("/readyz")).json()
    assert (told["level"], told["calls"], told["calls_talking"]) == ("normal", 1, 1)
    assert told["room_for_calls"] == 10
    assert told["headroom"] == 0.9
    speech = told["workers"][0]
    assert (speech["name"], speech["busy"], speech["queue_age_s"]) == ("speech", 0.93, 0.9)


@pytest.mark.virtual_time
async def test_callers_of_a_rush_begin_one_by_one_and_count_while_they_wait(
    clock: Callable[[], float],
) -> None:
    gateway = Gateway(Config(), AgentConfig(), clock=clock)
    began_s: list[float] = []

    class Talking:
        place_share = 1.0

    async def come() -> None:
        assert gateway.admission.lack() is None
        await gateway.admission.until_it_begins(asyncio.sleep)
        began_s.append(clock())
        gateway._sessions.append(cast(Session, Talking()))

    came_s = clock()
    n_places = for_new_callers(gateway.load_watch.room.n_calls)
    async with asyncio.TaskGroup() as rush:
        for _ in range(n_places):
            rush.create_task(come())
            await asyncio.sleep(0)
        found = gateway.admission.lack()
        assert found is not None and "this machine carries" in found
    after = [round(at_s - came_s) for at_s in began_s]
    assert n_places == 9 and after == [0, 0, 0, 0, 0, 0, 1, 2, 3]


@pytest.mark.virtual_time
async def test_where_calls_are_only_counted_nobody_waits(clock: Callable[[], float]) -> None:
    gateway = Gateway(Config(limits=Limits(admit_by_load=False)), AgentConfig(), clock=clock)
    came_s = clock()
    for _ in range(40):
        await gateway.admission.until_it_begins(asyncio.sleep)
    assert clock() == came_s


@pytest.mark.virtual_time
async def test_who_waits_to_begin_is_refused_by_a_server_that_shuts_down_meanwhile(
    clock: Callable[[], float],
) -> None:
    gateway = Gateway(Config(), AgentConfig(), clock=clock)
    async with asyncio.timeout(60):
        waiting = [
            asyncio.create_task(gateway.admission.until_it_begins(asyncio.sleep)) for _ in range(9)
        ]
        await asyncio.sleep(0.1)
        n_begun = sum(task.done() for task in waiting)
        gateway.admission.drain()
        found = await asyncio.gather(*waiting, return_exceptions=True)
    assert 0 < n_begun < len(waiting)
    assert found[:n_begun] == [None] * n_begun
    assert all(isinstance(one, Overloaded) for one in found[n_begun:])
