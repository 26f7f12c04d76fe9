"""Tools of the client's, at a desk where nobody can do them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from clients import resuming
from clients.agent_card import AgentCard
from clients.errors import ConnectionFailed
from clients.talk import desk_line
from clients.talk.desk_line import DeskLine

pytestmark = pytest.mark.virtual_time


class Socket:
    """Says these events, then hangs up; with ``is_gone`` it takes nothing more meanwhile."""

    def __init__(self, *events: dict[str, Any], is_gone: bool = False) -> None:
        self.close_code = 1000
        self.sent: list[dict[str, Any]] = []
        self._events = list(events)
        self._is_gone = is_gone

    async def recv(self) -> str:
        if self._events:
            return json.dumps(self._events.pop(0))
        raise ConnectionClosedError(Close(1000, ""), None)

    async def send(self, text: str) -> None:
        if self._is_gone:
            raise ConnectionClosedError(Close(1000, ""), None)
        self.sent.append(json.loads(text))


def done(*names: str, status: str = "completed") -> dict[str, Any]:
    calls = [{"type": "function_call", "name": name, "call_id": f"of {name}"} for name in names]
    return {"type": "response.done", "response": {"status": status, "output": calls}}


async def heard_on(
    socket: Socket, monkeypatch: pytest.MonkeyPatch, tools: tuple[str, ...] | None = ("book",)
) -> list[str]:
    """What comes over a line to a server whose agent leaves these tools to us (None: no card)."""

    async def dial(address: str, key: str | None) -> Socket:
        return socket

    async def read_card(url: str, key: str | None) -> AgentCard:
        if tools is None:
            raise ConnectionFailed("expected the agent's card, found 404")
        return AgentCard("Ava", "", "", "", tools)

    monkeypatch.setattr(resuming, "dial", dial)
    monkeypatch.setattr(desk_line, "read_card", read_card)
    line = await DeskLine.open("ws://nowhere")
    async with asyncio.timeout(5):
        return [received.type async for received in line.events()]


async def test_beside_one_of_ours_the_servers_own_call_is_ours_to_answer_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    socket = Socket(done("price", "book"))
    await heard_on(socket, monkeypatch)
    assert [sent.get("item", {}).get("call_id") for sent in socket.sent] == [
        "of price",
        "of book",
        None,
    ]


@pytest.mark.parametrize(
    ("event", "tools"),
    [
        (done("price"), ("book",)),  # the server answers it by itself
        (done(), ("book",)),
        (done("book", status="cancelled"), ("book",)),
        (done("book"), None),
    ],
)
async def test_other_responses_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], tools: tuple[str, ...] | None
) -> None:
    socket = Socket(event)
    await heard_on(socket, monkeypatch, tools)
    assert socket.sent == []


async def test_a_line_that_is_gone_by_then_ends_as_any(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await heard_on(Socket(done("book"), is_gone=True), monkeypatch) == ["response.done"]
