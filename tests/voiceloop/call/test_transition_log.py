"""A debug log lets a person follow a call, and holds none of its words."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeRecognizer, instant_backends

pytestmark = pytest.mark.virtual_time


async def test_the_log_says_why_the_agent_stopped_in_the_middle_of_a_sentence(
    clock: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "voiceloop.call")
    backends = instant_backends(recognizer=FakeRecognizer(["a latte", "stop please"]))
    async with Caller(clock, backends) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(600)
        await caller.say(900)
        call_id = caller.session.protocol.session_id
    lines = [line for line in caplog.messages if " -> " in line]
    assert lines and all(line.startswith(f"call {call_id} at ") for line in lines)
    (stopped,) = (line for line in lines if "InterruptReply" in line)
    assert "caller overlapping -> speaking" in stopped and "count a stop" in stopped
    assert any("-> preparing" in line for line in lines)
    assert any("agent preparing -> replying" in line for line in lines)
    assert not [line for line in lines if "latte" in line or "please" in line]
