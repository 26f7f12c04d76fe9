"""A wall clock that is set anew: what runs is timed by another, and goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import voiceloop
from tests.callers import Caller
from tests.hand_clock import HandClock
from voiceloop.access.keys import KeyRing
from voiceloop.errors import Unauthorized

DAY_S = 86_400.0
# What a client, a tool or a recording is told as a date, how long holds what is signed for others
# to read, how old a file is, and what depends
# on the time of day.
READS_THE_WALL_CLOCK = {
    "access/keys.py", "call/call.py", "call/session.py", "doors/carriers/door.py",
    "doors/desk.py", "doors/limits.py", "doors/routes.py", "http/chat.py",
    "http/routes.py", "recording/call_file.py", "recording/shelf.py", "reply/routing.py",
    "server/app.py", "tools/http.py", "tools/mcp_connection.py",
}  # fmt: skip


def test_no_deadline_is_read_off_the_wall_clock() -> None:
    room = Path(voiceloop.__file__).parent
    reads = re.compile(r"\btime\.time\b|datetime\.(now|utcnow|today)")
    found = {
        path.relative_to(room).as_posix()
        for path in room.rglob("*.py")
        if "recipes" not in path.parts and reads.search(path.read_text(encoding="utf-8"))
    }
    assert found == READS_THE_WALL_CLOCK


@pytest.mark.virtual_time
@pytest.mark.parametrize("by_s", [-DAY_S, DAY_S])
async def test_a_call_goes_on_whatever_the_wall_clock_says(
    clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    now = time.time
    async with Caller(clock) as caller:
        monkeypatch.setattr(time, "time", lambda: now() + by_s)
        caller.send("response.create")
        await caller.wait_for("response.done")
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        assert caller.transport.closed is None and not caller.of("voiceloop.session_expiring")
    assert caller.statuses() == ["completed", "completed"]


def test_a_client_secret_is_as_old_as_the_clock_of_its_server_says() -> None:
    clock = HandClock(1_000_000.0)
    keys = KeyRing(("a-key",), clock)
    secret = keys.issue("a-key", 60, {}).value
    clock.now_s -= 3600.0
    assert keys.check(secret).tenant == keys.check("a-key").tenant
    clock.now_s += 3600.0 + 61.0
    with pytest.raises(Unauthorized):
        keys.check(secret)
