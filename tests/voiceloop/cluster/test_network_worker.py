"""Real workers on the loopback network: shared, killed, drained, with and without TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.spoken import said_by
from tests.waiting import until
from voiceloop.backends import Speech, VoiceOptions
from voiceloop.cluster import door, host, remote_worker, remote_workers
from voiceloop.cluster.address import Address, read_address
from voiceloop.cluster.door import NetworkDoor
from voiceloop.cluster.handshake import stretched
from voiceloop.cluster.placed_models import TokenCounting
from voiceloop.cluster.remote_worker import Credentials, RemoteWorker
from voiceloop.cluster.remote_workers import RemoteWorkers
from voiceloop.cluster.tls import Seal, client_context, drawn_seal
from voiceloop.errors import BackendRefused, ConfigError, WorkerLost
from voiceloop.operation import WorkerAddresses
from voiceloop.workers import models
from voiceloop.workers.heartbeat import Pulse
from voiceloop.workers.messages import HeldModel, Ready, RoleReady, RoleSpec, WorkerSpec
from voiceloop.workers.models import WorkerLanguageModel, WorkerVoice
from voiceloop.workers.peer import Peer
from voiceloop.workers.process import WorkerProcess

SCRIPTED = Path(__file__).parents[2] / "faults"
OLD, NEW = "a key of this test's cluster", "the key that comes after"
KEY = WorkerAddresses(key=(OLD,))
UNTOLD = HeldModel()
SEALED = client_context()


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    places = (str(SCRIPTED), str(SCRIPTED.parents[1]))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(places))


class Host:
    """`voiceloop worker` in this process, with its child."""

    def __init__(self, address: Address, process: WorkerProcess, task: asyncio.Task[None]) -> None:
        self.address, self.process, self.task = address, process, task

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid


@asynccontextmanager
async def hosted(
    monkeypatch: pytest.MonkeyPatch,
    settings: WorkerAddresses = KEY,
    model: HeldModel = UNTOLD,
    version: str = "",
    host_address: str = "127.0.0.1",
    **options: object,
) -> AsyncIterator[Host]:
    started: list[WorkerProcess] = []

    class Watched(WorkerProcess):
        def __init__(self, *given: object, **named: object) -> None:
            super().__init__(*given, **named)  # type: ignore[arg-type]
            started.append(self)

    monkeypatch.setattr(host, "WorkerProcess", Watched)
    roles = (RoleSpec("voice", dict(options), "scripted_roles:load", model),)
    address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    serving = host.host_worker(
        WorkerSpec("voice", roles, version=version), Address(host_address, 0), settings, drain_s=5,
        ready=address.set_result,
    )  # fmt: skip
    task = asyncio.create_task(serving)
    await asyncio.wait([task, address], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        await task
    try:
        yield Host(await address, started[0], task)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def gateway(*hosts: Host, settings: WorkerAddresses = KEY) -> RemoteWorkers:
    return RemoteWorkers(replace(settings, voice=tuple(str(one.address) for one in hosts)))


def voice_of(workers: RemoteWorkers) -> WorkerVoice:
    pool = workers.of_role("voice")
    assert pool is not None
    return WorkerVoice(pool)


async def test_two_gateways_share_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as one, gateway(one) as first, gateway(one) as second:
        assert first.ready() and second.ready()
        assert await said_by(voice_of(first), "one") == b"one"
        assert await said_by(voice_of(second), "two") == b"two"
        assert voice_of(first).rate_hz == 24_000
        [load] = first.loads()
        assert (load.name, load.state) == (str(one.address), "ready") and load.hop_ms >= 0


async def test_a_call_that_goes_on_at_one_gateway_is_told_to_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one, gateway(one) as first, gateway(one) as second:
        heard: dict[str, list[tuple[str, str]]] = {"first": [], "second": []}
        first.hear_resumed(lambda *call: heard["first"].append(call))
        second.hear_resumed(lambda *call: heard["second"].append(call))
        first.tell_resumed("sess_1", "sess_2")
        await until(lambda: bool(heard["second"]))
        assert heard == {"first": [], "second": [("sess_1", "sess_2")]}


async def test_a_killed_worker_costs_its_streams_and_the_next_goes_elsewhere_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one, hosted(monkeypatch) as two, gateway(one, two) as workers:
        await until(lambda: all(worker.client.is_alive for worker in workers.workers))
        voice = voice_of(workers)
        stream = await voice.open("sess_1.turn_1", VoiceOptions())
        holder = next(w for w in workers.workers if w.load().n_streams == 1)
        killed = one if holder.address == one.address else two
        os.kill(killed.pid, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            await anext(aiter(stream.events()))
        assert workers.ready()  # the other
        assert await said_by(voice, "again") == b"again"
        await until(lambda: holder.client.is_alive)  # it was started anew, and joined anew
        assert holder.n_lost == 1


async def test_the_only_worker_is_waited_for_while_it_restarts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one, gateway(one) as workers:
        os.kill(one.pid, signal.SIGKILL)
        await until(lambda: not workers.ready())
        assert await said_by(voice_of(workers), "again") == b"again"


async def test_a_server_begins_with_the_first_worker_of_a_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_workers, "START_WAIT_S", 600.0)
    async with hosted(monkeypatch) as one:
        nobody = unheard_address()
        joining = RemoteWorkers(replace(KEY, voice=(nobody, str(one.address))))
        async with asyncio.timeout(30), joining as workers:
            assert workers.ready()
            assert await said_by(voice_of(workers), "hello") == b"hello"


def unheard_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


async def test_no_start_waits_for_workers_that_another_model_stands_in_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one:
        settings = replace(KEY, voice=(unheard_address(), str(one.address)))
        async with RemoteWorkers(settings, is_dispensable=True) as workers:
            pool = workers.of_role("voice")
            assert pool is not None and not pool.is_heard
            await until(lambda: pool.is_heard)
            for worker in workers.workers:
                monkeypatch.setattr(worker, "_silent_s", -1.0)  # as where a line is dead
            await until(lambda: workers.workers[1].n_lost == 1)


async def test_a_gateway_with_another_key_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "START_WAIT_S", 0.1)
    other = replace(KEY, key=("a key of another cluster",))
    async with hosted(monkeypatch) as one, gateway(one, settings=other) as workers:
        [worker] = workers.workers
        await until(lambda: bool(worker.trouble))
        assert "the same workers' key" in worker.trouble
        assert workers.loads()[0].trouble == worker.trouble  # which /readyz tells
        assert not workers.ready()


async def test_a_worker_without_the_role_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_workers, "START_WAIT_S", 0.1)
    async with hosted(monkeypatch) as one:
        async with RemoteWorkers(replace(KEY, engine=(str(one.address),))) as workers:
            [worker] = workers.workers
            await until(lambda: bool(worker.trouble))
            assert "expected the roles engine, found voice" in worker.trouble


async def test_a_worker_with_another_model_is_refused_unless_it_is_of_another_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_workers, "START_WAIT_S", 0.5)
    ava, tom = HeldModel("ava"), HeldModel("tom")
    async with (
        hosted(monkeypatch, model=ava) as one,
        hosted(monkeypatch, model=tom) as two,
        hosted(monkeypatch, model=tom, version="v2") as three,
    ):
        async with gateway(one) as workers:
            assert workers.held()["voice"] == ava
            workers.update({"voice": (str(one.address), str(two.address))})
            await until(lambda: bool(workers.loads()[1].trouble))
            told = workers.loads()[1].trouble
            assert told.startswith(f"voice: expected name ava as {one.address} has it, found tom")
            await said_by(voice_of(workers), "hello")
            assert workers.loads()[1].n_streams == 0
            both = {"voice": (str(one.address), str(three.address))}
            workers.update(both, {"voice": {"v2": 1.0}})
            await until(lambda: workers.loads()[1].state == "ready")
            assert workers.held()["voice"] == tom  # what new calls go to
            stream = await voice_of(workers).open("sess_2.turn_1", VoiceOptions())
            assert [load.n_streams for load in workers.loads()] == [0, 1]
            await stream.close()


async def test_workers_come_and_go_while_calls_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted(monkeypatch) as one, hosted(monkeypatch) as two, gateway(one) as workers:
        voice = voice_of(workers)
        stream = await voice.open("sess_1.turn_1", VoiceOptions())
        left = workers.workers[0]
        workers.update({"voice": (str(two.address),)})
        await until(workers.ready)
        assert await said_by(voice, "hello") == b"hello"
        stream.feed("to its end")  # where it began, though that is left
        event = await anext(aiter(stream.events()))
        assert isinstance(event, Speech) and event.samples == b"to its end"
        assert left.client.is_alive
        await stream.close()
        await until(lambda: not left.client.is_alive)
        assert left.n_lost == 0
        workers.update({})
        assert [(load.name, load.state) for load in workers.loads()] == [("voice", "not named")]
        waiting = asyncio.create_task(voice.open("sess_2.turn_1", VoiceOptions()))
        workers.update({"voice": (str(one.address),)})  # who waits goes to whoever is named then
        await (await waiting).close()


async def test_who_says_nothing_at_the_door_keeps_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one:
        place = (one.address.host, one.address.port)
        idle = [
            socket.create_connection(place, source_address=(f"127.0.0.{2 + n % 6}", 0))
            for n in range(6 * door.MOST_OF_ONE + 8)  # of six places, more than come in at once
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(door.HANDSHAKE_S / 2), gateway(one) as workers:
            assert await said_by(voice_of(workers), "hello") == b"hello"
        for connection in idle:
            connection.close()


async def test_all_addresses_of_one_network_come_in_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "network_of", lambda address: "2001:db8::/64")
    with entered() as (_, place), ExitStack() as idle:
        lines = [
            idle.enter_context(
                socket.create_connection(place, source_address=(f"127.0.0.{2 + n}", 0))
            )
            for n in range(2 * door.MOST_OF_ONE)
        ]
        told = [await asyncio.to_thread(hears, line) for line in lines]
        assert told == [True] * door.MOST_OF_ONE + [False] * door.MOST_OF_ONE


def hears(line: socket.socket) -> bool:
    """Whether a worker says anything to who comes in, before it hangs up."""
    line.settimeout(1.0)
    with suppress(OSError):
        return bool(line.recv(1))
    return False


@contextmanager
def entered(
    seal: Seal | None = None, keys: tuple[str, ...] = (OLD,)
) -> Iterator[tuple[NetworkDoor, tuple[str, int]]]:
    """A worker's door in this process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        entrance = NetworkDoor(listening, [stretched(key.encode()) for key in keys], seal)
        yield entrance, listening.getsockname()


@contextmanager
def relayed(place: tuple[str, int]) -> Iterator[Address]:
    """Somebody between the two, who shows a certificate of his own and passes on what is said."""
    own = drawn_seal().context

    def pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)

    def relay() -> None:
        with suppress(OSError):
            line, _ = listening.accept()
            with (
                own.wrap_socket(line, server_side=True) as gateway,
                client_context().wrap_socket(socket.create_connection(place)) as worker,
            ):
                back = threading.Thread(target=pass_on, args=(worker, gateway), daemon=True)
                back.start()
                pass_on(gateway, worker)
                worker.shutdown(socket.SHUT_RDWR)
                back.join()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        relaying = threading.Thread(target=relay, daemon=True)
        relaying.start()
        yield Address("127.0.0.1", listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
        relaying.join(timeout=5.0)


@pytest.mark.parametrize("is_relayed", [False, True])
async def test_who_sits_between_a_worker_and_its_gateway_is_refused_by_both(
    is_relayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (door, remote_worker):  # as if each end were on a machine of its own
        monkeypatch.setattr(module, "network_of", lambda address: address)
    credentials = Credentials((stretched(OLD.encode()),), "gateway 1", SEALED)
    with entered(drawn_seal()) as (entrance, place), relayed(place) as between:
        address = between if is_relayed else Address(*place)
        joining = RemoteWorker(address, frozenset({"voice"}), credentials)
        task = asyncio.create_task(joining.run())
        taken: list[Peer] = []
        if is_relayed:
            await until(lambda: bool(joining.trouble))
            assert "key and certificate" in joining.trouble
            assert entrance.take() == []
        else:
            await until(lambda: bool(taken.extend(entrance.take()) or taken))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for peer in taken:
            peer.close()


@pytest.mark.parametrize(
    ("workers", "gateways"),
    [
        ((NEW, OLD), (OLD,)),  # the worker is started anew first,
        ((OLD,), (NEW, OLD)),  # or the gateway is
        ((NEW, OLD), (NEW,)),  # and in the end neither has the old one
    ],
)
async def test_a_key_is_rolled_end_by_end(
    workers: tuple[str, ...], gateways: tuple[str, ...]
) -> None:
    credentials = Credentials(tuple(stretched(key.encode()) for key in gateways), "g", SEALED)
    with entered(keys=workers) as (entrance, place):
        joining = RemoteWorker(Address(*place), frozenset({"voice"}), credentials)
        task = asyncio.create_task(joining.run())
        taken: list[Peer] = []
        await until(lambda: bool(taken.extend(entrance.take()) or taken))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        taken[0].close()


async def test_a_key_that_is_rolled_costs_no_call_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rolling = replace(KEY, key=(NEW, OLD))
    said: list[bytes] = []

    async def talk(voice: WorkerVoice, n_times: int) -> None:
        for _ in range(n_times):
            said.append(await said_by(voice, "hello"))

    async with hosted(monkeypatch) as before, gateway(before) as old:
        talking = asyncio.create_task(talk(voice_of(old), 200))
        async with hosted(monkeypatch, rolling) as after:
            old.update({"voice": (str(before.address), str(after.address))})
            await until(lambda: len(old.loads()) == 2 and old.loads()[1].state == "ready")
            old.update({"voice": (str(after.address),)})  # the former ends with its last stream
            async with gateway(after, settings=replace(KEY, key=(NEW,))) as new:
                await talk(voice_of(new), 20)
                await talking
    assert said == [b"hello"] * 220


async def test_a_worker_that_loads_is_joined_as_soon_as_it_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[int] = []

    def no_pause(n_failures: int, least_s: float) -> float:
        pauses.append(n_failures)
        return 0.0

    monkeypatch.setattr(remote_worker, "JOIN_S", 0.05)
    monkeypatch.setattr(remote_worker, "restart_pause_s", no_pause)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # whose door is not open yet
        credentials = Credentials((stretched(OLD.encode()),), "g", SEALED)
        joining = RemoteWorker(Address(*listening.getsockname()), frozenset({"voice"}), credentials)
        task = asyncio.create_task(joining.run())
        await until(lambda: len(pauses) == 5)
        assert "loads its models" in joining.trouble
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert pauses == [0] * 5  # none grows while it loads


async def test_a_line_that_leaves_the_machine_is_encrypted_without_any_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            asking.connect(("192.0.2.1", 9))  # sends nothing: it chooses this machine's address
        except OSError:
            pytest.skip("this machine has no address besides loopback")
        own = asking.getsockname()[0]
    async with hosted(monkeypatch, host_address=own) as one:
        with socket.create_connection((one.address.host, one.address.port)) as plain:
            assert not await asyncio.to_thread(hears, plain)  # a plain worker would speak first
        async with gateway(one) as workers:
            assert await said_by(voice_of(workers), "x" * 100_000) == b"x" * 100_000


async def test_a_signal_lets_streams_end_and_sends_new_ones_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(monkeypatch) as one, gateway(one) as workers:
        voice = voice_of(workers)
        stream = await voice.open("sess_1.turn_1", VoiceOptions())
        os.kill(os.getpid(), signal.SIGTERM)
        await until(lambda: workers.loads()[0].state == "draining")
        stream.feed("the end of a sentence")
        event = await anext(aiter(stream.events()))
        assert isinstance(event, Speech) and event.samples == b"the end of a sentence"
        async with hosted(monkeypatch) as other, gateway(one, other) as both:
            await until(lambda: both.loads()[0].state == "draining")
            assert await said_by(voice_of(both), "hello") == b"hello"
            assert both.loads()[0].n_streams == 0
        await stream.close()
        async with asyncio.timeout(5):
            await one.task


async def test_a_model_that_cannot_be_loaded_ends_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BackendRefused, match="unexpected keyword argument 'colour'"):
        async with hosted(monkeypatch, colour="red"):
            pass


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:99999", "http://host:80", "h:x"]
)
def test_an_address_is_a_host_and_a_port(text: str) -> None:
    with pytest.raises(ConfigError, match="llm_url: expected HOST:PORT, found"):
        read_address("llm_url", text)


def test_addresses_read_as_they_are_written() -> None:
    for text in ("10.0.0.5:9000", "[::1]:9000", "worker-1.local:9000"):
        assert str(read_address("llm_url", text)) == text


@pytest.mark.parametrize("key", [(), ("",), ("short",), (OLD, "short")])
def test_workers_on_the_network_want_a_key(key: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="workers.key: expected at least 16 bytes"):
        RemoteWorkers(WorkerAddresses(voice=("127.0.0.1:9000",), key=key))


async def test_a_name_that_is_none_is_trouble_and_no_end_of_the_watch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_workers, "START_WAIT_S", 0.0)
    async with RemoteWorkers(replace(KEY, voice=("a..b:9001",))) as workers:
        await until(lambda: bool(workers.workers[0].trouble))
        assert not workers.ready()


def test_a_worker_is_silent_also_before_its_first_heartbeat() -> None:
    pulse = Pulse()
    assert pulse.silence_s(100.0) == 0.0
    pulse.begin(100.0)
    assert pulse.silence_s(130.0) == 30.0


async def test_tokens_are_counted_as_soon_as_a_worker_says_how() -> None:
    ready = asyncio.Event()

    class Late:
        is_ready = False

        async def wait_ready(self) -> None:
            await ready.wait()

        def token_counter(self) -> Callable[[str], int]:
            return len

    counting = TokenCounting()
    async with counting.of(Late()):  # type: ignore[arg-type]
        assert counting.counter() is None
        ready.set()
        await until(lambda: counting.counter() is not None)


@pytest.mark.parametrize(
    ("packed", "told"),
    [
        (zlib.compress(bytes(200_000)), "of at most 100000 bytes"),
        (zlib.compress(b"{}")[:-4], "or its half"),
        (b"no zlib", "expected a packed tokenizer"),
        (zlib.compress(b"{}"), "expected a tokenizer of a worker"),
    ],
)
async def test_a_tokenizer_of_a_worker_is_unpacked_within_a_bound(
    packed: bytes, told: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(models, "MAX_TOKENIZER_BYTES", 100_000)
    ready = Ready((RoleReady("engine", 1.0, tokenizer=packed),))
    model = WorkerLanguageModel(SimpleNamespace(ready=ready))  # type: ignore[arg-type]
    counting = TokenCounting()
    async with counting.of(model):
        assert counting.counter() is None
    assert told in caplog.text
