"""Real worker processes, with a role that has no model, killed, stopped and made to fail."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.spoken import said_by
from voiceloop.backends import (
    ChatMessage,
    Generated,
    GenerateParams,
    RecognizerOptions,
    Speech,
    TextDelta,
    Transcript,
    VoiceOptions,
)
from voiceloop.errors import BackendError, BackendRefused, Overloaded, WorkerLost
from voiceloop.workers.messages import MAX_MESSAGE_BYTES, RoleSpec, WorkerSpec
from voiceloop.workers.supervisor import Supervisor

HERE = Path(__file__).parent
ENVIRON = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}


def spec(
    *, hung_after_s: float = 2.0, spins_after_s: float = 15.0, **options: object
) -> WorkerSpec:
    roles = ("engine", "recognizer", "voice")
    place = "scripted_roles:load"
    all_roles = tuple(RoleSpec(role, dict(options), place) for role in roles)
    return WorkerSpec("all", all_roles, hung_after_s=hung_after_s, spins_after_s=spins_after_s)


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    async with Supervisor([spec()], environ=ENVIRON) as running:
        yield running


@pytest.fixture
async def impatient() -> AsyncIterator[Supervisor]:
    """Three heartbeats missed are a hang: short enough for a unit suite."""
    async with Supervisor([spec(hung_after_s=0.8)], environ=ENVIRON) as running:
        yield running


async def test_all_three_models_answer_through_one_worker(supervisor: Supervisor) -> None:
    assert supervisor.ready()
    assert supervisor.voice().rate_hz == 24_000
    assert await said_by(supervisor.voice(), "hello") == b"hello"

    recognizer = await supervisor.recognizer().open("sess_1", RecognizerOptions())
    recognizer.feed(b"\0\0" * 320)
    recognizer.finalize()
    transcript = await anext(aiter(recognizer.events()))
    assert isinstance(transcript, Transcript) and transcript.text == "320"
    await recognizer.close()

    branch = await supervisor.language_model().branch("sess_1/turn_1", ())
    branch.commit((ChatMessage("user", "good morning"),), GenerateParams())
    events = branch.events()
    assert await anext(events) == TextDelta("good morning")
    assert isinstance(await anext(events), Generated)
    await branch.close()


def test_a_signal_to_our_group_leaves_the_workers_to_us(supervisor: Supervisor) -> None:
    pid = supervisor.workers[0].pid
    assert pid is not None
    assert os.getpgid(pid) != os.getpgid(0)


async def test_a_killed_worker_fails_its_streams_and_the_next_stream_works(
    supervisor: Supervisor,
) -> None:
    worker = supervisor.workers[0]
    killed = worker.pid
    stream = await supervisor.voice().open("sess_1/turn_1", VoiceOptions())
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await anext(stream.events())
    assert not supervisor.ready()
    assert await said_by(supervisor.voice(), "again") == b"again"
    assert worker.pid != killed
    assert worker.n_restarts == 1
    assert supervisor.ready()


async def test_a_worker_that_hangs_is_killed_and_replaced(
    impatient: Supervisor,
) -> None:
    stopped = impatient.workers[0].pid
    stream = await impatient.voice().open("sess_1/turn_1", VoiceOptions())
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    with pytest.raises(WorkerLost):
        await anext(stream.events())
    assert await said_by(impatient.voice(), "again") == b"again"


@pytest.mark.parametrize("told", ["hang", "break"], ids=["never returns", "finds its KV unsound"])
async def test_a_model_that_cannot_go_on_ends_its_worker(impatient: Supervisor, told: str) -> None:
    with pytest.raises(WorkerLost):
        await said_by(impatient.voice(), told)
    assert await said_by(impatient.voice(), "again") == b"again"


async def test_a_model_that_computes_without_end_is_killed_and_replaced() -> None:
    async with Supervisor([spec(spins_after_s=1.5)], environ=ENVIRON) as supervisor:
        with pytest.raises(WorkerLost):
            await said_by(supervisor.voice(), "spin")
        assert await said_by(supervisor.voice(), "again") == b"again"


@pytest.mark.parametrize(
    ("told", "error"),
    [("oversize", "expected a message of at most"), ("crash", "found RuntimeError")],
    ids=["an event too large for the gateway", "an error nobody foresaw"],
)
async def test_what_goes_wrong_in_a_stream_fails_it_alone(
    supervisor: Supervisor, told: str, error: str
) -> None:
    neighbour = await supervisor.voice().open("sess_2/turn_1", VoiceOptions())
    with pytest.raises(BackendRefused, match=error):
        await said_by(supervisor.voice(), told)
    neighbour.feed("still here")
    event = await anext(aiter(neighbour.events()))
    assert isinstance(event, Speech) and event.samples == b"still here"
    await neighbour.close()
    assert supervisor.workers[0].n_restarts == 0


async def test_a_failed_step_ends_its_streams_and_the_worker_goes_on() -> None:
    async with Supervisor([spec(raise_at_steps=(2, 4))], environ=ENVIRON) as supervisor:
        for _ in range(2):
            assert await said_by(supervisor.voice(), "fine") == b"fine"
            with pytest.raises(BackendError, match="found RuntimeError"):
                await said_by(supervisor.voice(), "fails")
        assert await said_by(supervisor.voice(), "fine") == b"fine"
        assert supervisor.workers[0].n_restarts == 0


async def test_what_a_failed_step_had_made_is_not_waited_for(supervisor: Supervisor) -> None:
    neighbour = await supervisor.voice().open("sess_2/turn_1", VoiceOptions())
    neighbour.feed("made, and lost with the step")
    with pytest.raises(BackendError):
        await said_by(supervisor.voice(), "fail the step")
    with pytest.raises(BackendError):
        async for _ in neighbour.events():
            pass
    assert supervisor.workers[0].n_restarts == 0


async def test_the_third_failed_step_of_a_minute_ends_the_worker_and_not_the_call() -> None:
    async with Supervisor([spec(raise_at_steps=(2, 3, 4))], environ=ENVIRON) as supervisor:
        assert await said_by(supervisor.voice(), "fine") == b"fine"
        for _ in range(2):
            with pytest.raises(BackendError):
                await said_by(supervisor.voice(), "fails")
        with pytest.raises(WorkerLost):
            await said_by(supervisor.voice(), "the third")
        assert await said_by(supervisor.voice(), "again") == b"again"


async def test_a_message_too_large_for_the_worker_fails_its_stream_at_the_sender(
    supervisor: Supervisor,
) -> None:
    history = (ChatMessage("user", "w" * MAX_MESSAGE_BYTES),)
    branch = await supervisor.language_model().branch("sess_1/turn_1", history)
    with pytest.raises(BackendRefused, match="expected a message of at most"):
        await anext(branch.events())
    await branch.close()
    assert await said_by(supervisor.voice(), "still here") == b"still here"
    assert supervisor.workers[0].n_restarts == 0


@pytest.mark.parametrize("error", [OSError(errno.EAGAIN, "fork"), RuntimeError("no more threads")])
async def test_a_respawn_that_fails_is_tried_again(
    supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    spawn, n_failed = asyncio.create_subprocess_exec, 0

    async def fails_once(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        nonlocal n_failed
        n_failed += 1
        if n_failed == 1:
            raise error
        return await spawn(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fails_once)
    stream = await supervisor.voice().open("sess_1/turn_1", VoiceOptions())
    killed = supervisor.workers[0].pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    with pytest.raises(WorkerLost):
        await anext(stream.events())
    assert await said_by(supervisor.voice(), "again") == b"again"
    assert n_failed == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
async def test_keys_do_not_reach_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOICELOOP_KEYS", "sk-secret")
    async with Supervisor([spec()], environ=ENVIRON) as supervisor:
        environ = environ_of(supervisor.workers[0].pid)
        assert b"PYTHONPATH" in environ
        assert b"sk-secret" not in environ


def environ_of(pid: int | None) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


async def test_one_failed_stream_leaves_its_neighbours_alone(supervisor: Supervisor) -> None:
    neighbour = await supervisor.voice().open("sess_2/turn_1", VoiceOptions())
    with pytest.raises(BackendError, match="this stream only"):
        await said_by(supervisor.voice(), "fail in step")
    with pytest.raises(BackendRefused, match="speakable"):
        await said_by(supervisor.voice(), "refuse")
    with pytest.raises(Overloaded):
        stream = await supervisor.voice().open("sess_1/turn_2", VoiceOptions())
        stream.feed("flood")
        neighbour.feed("here")
        await anext(aiter(neighbour.events()))  # behind the flood: nobody took that meanwhile
        async for _ in stream.events():
            pass
    neighbour.feed("still here")
    event = await anext(aiter(neighbour.events()))
    assert isinstance(event, Speech) and event.samples == b"still here"
    await neighbour.close()
    assert supervisor.workers[0].n_restarts == 0


@pytest.mark.parametrize(
    ("load", "kind", "told"),
    [
        ("unloadable", BackendRefused, "found nothing at /nowhere"),
        ("dying", WorkerLost, "exit code 1 while loading engine"),
        ("broken", BackendRefused, "expected the engine to load and to answer, found RuntimeError"),
    ],
)
async def test_a_role_that_does_not_load_ends_the_start_with_the_reason(
    load: str, kind: type[Exception], told: str
) -> None:
    voice = WorkerSpec("voice", (RoleSpec("voice", {}, "scripted_roles:load"),))
    engine = WorkerSpec("engine", (RoleSpec("engine", {}, f"scripted_roles:{load}"),))
    with pytest.raises(kind, match=told):
        await Supervisor([voice, engine], environ=ENVIRON).start()


async def test_workers_end_with_their_supervisor() -> None:
    async with Supervisor([spec()], environ=ENVIRON) as supervisor:
        pid = supervisor.workers[0].pid
        stream = await supervisor.voice().open("sess_1/turn_1", VoiceOptions())
    assert pid is not None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    with pytest.raises(WorkerLost):
        await anext(stream.events())
    assert [state.state for state in supervisor.states()] == ["stopped"] * 3


GATEWAY = """
import asyncio, time
from voiceloop.backends import VoiceOptions
from voiceloop.workers.supervisor import Supervisor
from voiceloop.workers.messages import RoleSpec, WorkerSpec

async def main():
    spec = WorkerSpec("voice", (RoleSpec("voice", {}, "scripted_roles:load"),))
    async with Supervisor([spec]) as supervisor:
        stream = await supervisor.voice().open("sess_1/turn_1", VoiceOptions())
        stream.feed("and then")
        await anext(stream.events())
        stream.feed("hang")
        await asyncio.sleep(0)
        print(supervisor.workers[0].pid, flush=True)
        time.sleep(3600)

asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's help is Linux's")
def test_a_busy_worker_dies_with_a_killed_gateway() -> None:
    environ = {**os.environ, **ENVIRON}
    command = [sys.executable, "-P", "-c", GATEWAY]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as gateway:
        assert gateway.stdout is not None
        worker = os.pidfd_open(int(gateway.stdout.readline()))
        gateway.kill()
    try:
        ended, _, _ = select.select([worker], [], [], 10)
        assert ended
    finally:
        os.close(worker)
