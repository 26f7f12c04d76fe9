"""A whole call whose workers are killed in mid-turn: the turn fails, the call goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from clients.connection import typed
from tests.callers import Caller
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.backends import Backends, VoiceOptions
from voiceloop.reply.voice import KeptLines
from voiceloop.workers.messages import RoleSpec, WorkerSpec
from voiceloop.workers.process import WorkerProcess
from voiceloop.workers.supervisor import Supervisor

HERE = Path(__file__).parent
ENVIRON = {"PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1]}"}
FALLBACK = AgentConfig().fallback
PLACE = "scripted_roles:load"
LINE = "One moment, please."


def caller_of(
    supervisor: Supervisor, kept_lines: KeptLines | None = None, agent: AgentConfig | None = None
) -> Caller:
    backends = Backends(supervisor.recognizer(), supervisor.language_model(), supervisor.voice())
    return Caller(time.monotonic, backends, agent, kept_lines=kept_lines)


async def until_kept(kept: KeptLines) -> None:
    """The line is spoken beside the call: wait for it as for anything another process does."""
    for _ in range(500):
        if kept.line(FALLBACK, VoiceOptions()) is not None:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("expected the fallback to be kept within 5 s")


def ask(caller: Caller, text: str, modality: str) -> None:
    caller.send("conversation.item.create", item=typed(text))
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


@pytest.mark.parametrize("does", ["hang", "spin"])
async def test_a_caller_whose_engine_stands_still_is_spoken_to_and_answered_next(
    does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Waiting, "say_after_s", 0.05)
    engine = WorkerSpec(
        "engine", (RoleSpec("engine", {}, PLACE),), hung_after_s=1.0, spins_after_s=1.5
    )
    speech = WorkerSpec("speech", (RoleSpec("recognizer", {}, PLACE), RoleSpec("voice", {}, PLACE)))
    waiting = Waiting(say=(LINE,), first_token_ms=30_000)
    agent = AgentConfig(waiting=waiting)
    async with Supervisor([engine, speech], environ=ENVIRON) as supervisor:
        stuck = supervisor.workers[0].pid
        async with caller_of(supervisor, agent=agent) as caller:
            ask(caller, does, "audio")
            failed = await caller.wait_for("response.done")
            assert failed.event["response"]["status"] == "failed"
            [said] = caller.of("response.output_audio_transcript.done")
            assert said.event["transcript"] == f"{LINE} {FALLBACK}"
            while supervisor.workers[0].pid in (stuck, None) or not supervisor.ready():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            ask(caller, "and then", "audio")
            await caller.wait_for("response.done", count=2)
            assert caller.statuses() == ["failed", "completed"]


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
