"""A whole call whose workers are killed in mid-turn: the turn fails, the call goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.callers import Caller
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, VoiceOptions
from voiceloop.reply.sound.kept_lines import KeptLines
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.process import WorkerProcess
from voiceloop.workers.supervisor import Supervisor

ENVIRON = {"PYTHONPATH": str(Path(__file__).parent)}
FALLBACK = AgentConfig().fallback
PLACE = "scripted_roles:load"


@pytest.fixture
async def supervisor() -> AsyncIterator[Supervisor]:
    specs = [
        WorkerSpec("engine", (RoleSpec("engine", {}, PLACE),)),
        WorkerSpec("speech", (RoleSpec("recognizer", {}, PLACE), RoleSpec("voice", {}, PLACE))),
    ]
    async with Supervisor(specs, environ=ENVIRON) as running:
        yield running


def caller_of(supervisor: Supervisor, kept_lines: KeptLines | None = None) -> Caller:
    backends = Backends(supervisor.recognizer(), supervisor.language_model(), supervisor.voice())
    return Caller(time.monotonic, backends, kept_lines=kept_lines)


async def until_kept(kept: KeptLines) -> None:
    """The line is spoken beside the call: wait for it as for anything another process does."""
    for _ in range(500):
        if kept.line(FALLBACK, VoiceOptions()) is not None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("expected the fallback to be kept within 5 s")


def ask(caller: Caller, text: str, modality: str) -> None:
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    caller.send("conversation.item.create", item=item)
    caller.send("response.create", response={"output_modalities": [modality]})


def kill(worker: WorkerProcess) -> None:
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)


async def test_a_killed_engine_fails_its_turn_and_the_next_one_is_answered(
    supervisor: Supervisor,
) -> None:
    async with caller_of(supervisor) as caller:
        ask(caller, "half a reply", "text")
        await caller.wait_for("response.output_text.delta")
        kill(supervisor.workers[0])
        failed = await caller.wait_for("response.done")
        assert failed.event["response"]["status"] == "failed"
        assert failed.event["response"]["status_details"]["error"]["code"] == "worker_lost"
        ask(caller, "and now", "text")
        await caller.wait_for("response.done", count=2)
        assert caller.statuses() == ["failed", "completed"]


async def test_a_killed_voice_fails_its_turn_and_the_next_one_is_heard(
    supervisor: Supervisor,
) -> None:
    async with caller_of(supervisor) as caller:
        ask(caller, "half", "audio")
        first = await caller.wait_for("response.output_audio.delta")
        kill(supervisor.workers[1])
        failed = await caller.wait_for("response.done")
        assert failed.event["response"]["status"] == "failed"
        ask(caller, "hi", "audio")
        await caller.wait_for("response.done", count=2)
        assert caller.statuses() == ["failed", "completed"]
        assert caller.audio_ms() > caller.audio_ms(first.event["response_id"])


async def test_a_caller_whose_voice_is_killed_hears_the_fallback_as_it_was_spoken_before(
    supervisor: Supervisor,
) -> None:
    kept = KeptLines()
    async with caller_of(supervisor, kept) as caller:
        await until_kept(kept)
        ask(caller, "half", "audio")
        await caller.wait_for("response.output_audio.delta")
        kill(supervisor.workers[1])
        await caller.wait_for("response.done", count=2)
        assert caller.statuses() == ["failed", "failed"]
        second = caller.of("response.created")[1].event["response"]["id"]
        [done] = caller.of("response.output_audio_transcript.done")[1:]
        assert done.event["transcript"] == FALLBACK
        assert caller.audio_ms(second) > 0
