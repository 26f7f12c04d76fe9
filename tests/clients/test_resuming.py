"""A call that goes on over another line, and one that is hung up while its line is down."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from clients import resuming
from clients.resuming import ResumingConnection

pytestmark = pytest.mark.virtual_time
TICKET = {"type": "voiceloop.resume_ticket", "ticket": "t", "returns": 1}


class Line:
    """Says these events, and then breaks, or stays silent until it is closed."""

    def __init__(self, *events: dict[str, object], breaks: bool = False) -> None:
        self.close_code: int | None = None
        self.sent: list[str] = []
        self._events = list(events)
        self._breaks = breaks
        self._closed = asyncio.Event()

    async def recv(self) -> str:
        if self._events:
            return json.dumps(self._events.pop(0))
        if not self._breaks:
            await self._closed.wait()
        self.close_code = self.close_code or 1012
        raise ConnectionClosedError(Close(self.close_code, ""), None)

    async def send(self, text: str) -> None:
        self.sent.append(json.loads(text)["type"])

    async def close(self) -> None:
        self.close_code = self.close_code or 1000
        self._closed.set()


class Dialled:
    """Lines, one after the other, each so long after it was dialled."""

    def __init__(self, lines: Sequence[Line], takes_s: float = 1.0) -> None:
        self.lines, self.takes_s, self.n = lines, takes_s, 0

    async def __call__(self, address: str, key: str | None) -> Line:
        self.n += 1
        if self.n > 1:
            await asyncio.sleep(self.takes_s)
        return self.lines[self.n - 1]


async def heard(connection: ResumingConnection) -> list[str]:
    return [received.type async for received in connection.events()]


@pytest.mark.parametrize("after_s", [0.05, 0.8])  # before it is dialled, and meanwhile
async def test_who_hangs_up_while_the_line_is_down_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch, after_s: float
) -> None:
    second = Line({"type": "voiceloop.resumed"})
    monkeypatch.setattr(resuming, "dial", Dialled([Line(TICKET, breaks=True), second]))
    connection = await ResumingConnection.open("ws://nowhere")
    hearing = asyncio.create_task(heard(connection))
    await asyncio.sleep(after_s)
    await connection.close()
    async with asyncio.timeout(10.0):
        assert await hearing == ["voiceloop.resume_ticket"]
    assert second.sent == [] and connection.n_resumed == 0
