"""A call's line: what waits in it, and who sits beside it."""

from __future__ import annotations

import json

import pytest

from tests.hand_clock import HandClock
from voiceloop.call.connection import Disconnected, Hello
from voiceloop.doors.line import MAX_EVENT_BYTES, MAX_SIDE_FRAMES, MAX_SIDES, MAX_SOUND_BYTES, Line
from voiceloop.errors import Overloaded
from voiceloop.realtime.sound_line import Sound


class Far:
    lead_ms = 40.0

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_closed = False

    def play_delay_ms(self) -> float:
        return 0.0

    def send_sound(self, samples: bytes) -> None: ...

    def clear_sound(self) -> None: ...

    async def send(self, event: str) -> None:
        self.sent.append(event)

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def line() -> Line:
    one = Line(Hello(door="webrtc"), HandClock(0.0))
    one.far = Far()
    return one


async def test_sound_and_events_come_in_order(line: Line) -> None:
    line.hear(b"\0\0")
    line.take("{}")
    line.hear(b"\1\1")
    assert [await line.receive() for _ in range(3)] == [Sound(b"\0\0"), "{}", Sound(b"\1\1")]


async def test_a_session_that_does_not_read_holds_no_more_than_ten_seconds(line: Line) -> None:
    for _ in range(1000):
        line.hear(bytes(960))
    n_waiting = 0
    while line._waiting:
        await line.receive()
        n_waiting += 960
    assert n_waiting == MAX_SOUND_BYTES


async def test_a_client_that_sends_more_than_is_read_is_let_go(line: Line) -> None:
    for _ in range(MAX_EVENT_BYTES // 2**18 + 1):
        line.take("x" * 2**18)
    with pytest.raises(Disconnected) as ended:
        await line.receive()
    assert ended.value.code == 1008


async def test_who_sits_down_late_begins_with_the_session_as_it_stands(line: Line) -> None:
    await line.send('{"type":"session.created","event_id":"1","session":{"id":"s"}}')
    await line.send('{"type":"session.updated","event_id":"2","session":{"id":"s","voice":"b"}}')
    with line.side() as side:
        await line.send('{"type":"error"}')
        first = json.loads(str(await side.next()))
        assert first["type"] == "session.created" and first["session"]["voice"] == "b"
        assert await side.next() == '{"type":"error"}'
        await line.close()
        assert await side.next() is None


async def test_four_sit_beside_a_call_and_who_does_not_read_is_let_go(line: Line) -> None:
    with line.side() as slow, line.side(), line.side(), line.side():
        with pytest.raises(Overloaded, match=f"takes {MAX_SIDES} connections"), line.side():
            pass
        for _ in range(MAX_SIDE_FRAMES + 10):
            await line.send("{}")
        assert slow.is_over
    with line.side():  # they have left
        pass
    assert isinstance(line.far, Far) and len(line.far.sent) == MAX_SIDE_FRAMES + 10
