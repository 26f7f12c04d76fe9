"""A turn that is typed ends with the reply that calls nothing, whatever stands before it."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection

from benchmarks.calls.typed_call import TypedCall, TypedTurn
from clients.connection import RealtimeConnection
from clients.errors import ConnectionFailed
from tests.clients.mock_server import MemorySocket

CALLS = {"type": "response.function_call_arguments.done", "name": "get_price"}


def says(text: str) -> dict[str, Any]:
    return {"type": "response.output_audio_transcript.done", "transcript": text}


def done(status: str = "completed") -> dict[str, Any]:
    return {"type": "response.done", "response": {"status": status}}


async def turn(*events: dict[str, Any], hangs_up: bool = False) -> tuple[TypedTurn, list[str]]:
    """The turn that these events of a server make, and the types of what the caller sent."""
    down: asyncio.Queue[str | None] = asyncio.Queue()
    up: asyncio.Queue[str | None] = asyncio.Queue()
    for event in events:
        down.put_nowait(json.dumps(event))
    if hangs_up:
        down.put_nowait(None)
    socket = cast(ClientConnection, MemorySocket(down, up))
    found = await TypedCall(RealtimeConnection(socket, "memory")).turn("How much is a latte?")
    return found, [json.loads(up.get_nowait() or "{}")["type"] for _ in range(up.qsize())]


async def test_a_reply_ends_the_turn_that_was_sent() -> None:
    found, sent = await turn(says("It's $4."), done(), says("not of this turn"), done())
    assert found == TypedTurn("It's $4.", (), False)
    assert sent == ["conversation.item.create", "response.create"]


async def test_behind_a_line_and_a_call_the_answer_is_waited_for() -> None:
    found, _ = await turn(says("Let me look."), CALLS, done(), says("It's $4."), done())
    assert found == TypedTurn("Let me look. It's $4.", ("get_price",), False)


async def test_a_reply_that_failed_is_told_and_no_more_is_waited_for() -> None:
    found, _ = await turn(CALLS, done("failed"))
    assert found == TypedTurn("", ("get_price",), True)


async def test_a_call_that_the_server_ends_is_an_error() -> None:
    with pytest.raises(ConnectionFailed, match="ended the call"):
        await turn(says("It's"), hangs_up=True)
