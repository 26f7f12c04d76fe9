"""Real clients of the field, each in its own environment, against our server on scripted models.

Made by ``python tests/interop/make_envs.py``; without those environments these tests skip.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import soundfile

from audio.resample import Resampler
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.config import Config
from voiceloop.server import Gateway, build_app, listen, make_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = Path(os.environ.get("VOICELOOP_INTEROP", ROOT / "out" / "interop"))
SPEECH = ROOT / "clients" / "call" / "slt" / "1_hours.flac"
REPLY = "Certainly, that is noted, and here is a little more about it so that you can interrupt."

pytestmark = [pytest.mark.call, pytest.mark.timeout(120)]


def answer(messages: tuple[ChatMessage, ...]) -> Reply:
    """A tool call when asked for one, its result when it is there, else two seconds of talk."""
    last = messages[-1]
    if last.role == "tool":
        return Reply(f"It is {last.content}.")
    if last.role == "user" and "use the tool" in last.content:
        return Reply("", (ToolCall("call_1", "hours", '{"day": "monday"}'),))
    return Reply(REPLY)


@asynccontextmanager
async def server() -> AsyncIterator[str]:
    backends = instant_backends(
        recognizer=FakeRecognizer(("well this is what i said",)),
        language_model=FakeLanguageModel(answer),
    )
    gateway = Gateway(Config(), AgentConfig(instructions="Be kind."), backends)
    sock = listen("127.0.0.1", 0)
    uvicorn_server = make_server(build_app(gateway), gateway.config)
    serving = asyncio.create_task(uvicorn_server.serve(sockets=[sock]))
    try:
        yield f"ws://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        uvicorn_server.should_exit = uvicorn_server.force_exit = True
        await serving


def speech_24k(path: Path) -> Path:
    samples, rate_hz = soundfile.read(SPEECH, dtype="int16")
    resampled = Resampler(rate_hz, 24000).push(samples)
    path.write_bytes(np.asarray(resampled, dtype="<i2").tobytes())
    return path


@pytest.mark.parametrize("client", ["openai", "agents", "pipecat", "livekit"])
async def test_a_real_client_works(client: str, tmp_path: Path) -> None:
    python = ENVIRONMENTS / client / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no {python}; make it with: python tests/interop/make_envs.py")
    script = ROOT / "tests" / "interop" / "clients" / f"{client}_client.py"
    async with server() as url:
        process = await asyncio.create_subprocess_exec(
            str(python),
            str(script),
            url,
            str(speech_24k(tmp_path / "speech.raw")),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-4000:]
