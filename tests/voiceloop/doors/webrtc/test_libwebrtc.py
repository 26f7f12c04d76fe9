"""A call by libwebrtc, the engine of browsers, which runs in a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec

import pytest

from tests.fakes import FakeRecognizer, instant_backends
from tests.serving import served

pytestmark = [
    pytest.mark.call,
    pytest.mark.skipif(find_spec("webrtc") is None, reason="needs the package wrtc"),
]


async def test_a_browsers_engine_speaks_is_answered_and_hangs_up() -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with served(backends) as (gateway, url):
        ear = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.webrtc_ear", url, "700",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, log = await asyncio.wait_for(ear.communicate(), 40)
        assert ear.returncode == 0, log.decode()[-2000:]
        found = json.loads(out)
    assert found["types"][0] == "session.created"
    assert "output_audio_buffer.stopped" in found["types"]
    assert found["n_loud"] > 20  # 10 ms each, out of its buffer
    assert not gateway.n_sessions
