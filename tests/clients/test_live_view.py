"""What a person at the terminal reads of a call."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from clients.connection import Received
from clients.live_view import LiveView


def shown(*events: dict[str, Any]) -> list[str]:
    """The finished lines after these events of the server."""
    out = io.StringIO()
    with LiveView(Console(file=out, width=80), "agent") as view:
        for event in events:
            view.received(Received(event, 0.0))
    return [line.rstrip() for line in out.getvalue().splitlines() if line.strip()]


def done(status: str, error: dict[str, str] | None = None) -> dict[str, Any]:
    details = {"type": status, "error": error} if error else None
    return {
        "type": "response.done",
        "response": {"id": "r", "status": status, "status_details": details},
    }


CREATED = {"type": "response.created", "response": {"id": "r"}}
WORDS = {"type": "response.output_audio_transcript.delta", "response_id": "r", "delta": "Sorry?"}
WHY = {"type": "server_error", "code": "backend_error", "message": "expected a voice, found none"}


def test_what_was_said_before_a_reply_failed_stands_above_the_reason() -> None:
    said, reason = shown(CREATED, WORDS, done("failed", WHY))
    assert said.startswith("agent") and "Sorry?" in said
    assert reason == "(no answer: expected a voice, found none)"


@pytest.mark.parametrize("status", ["completed", "cancelled", "incomplete"])
def test_a_reply_that_did_not_fail_is_its_words_alone(status: str) -> None:
    (line,) = shown(CREATED, WORDS, done(status))
    assert "Sorry?" in line


def test_a_tool_call_and_its_result_are_told_once_each() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "book", "arguments": ""}
    whole = call | {"arguments": '{"day": "monday"}'}
    result = {"type": "function_call_output", "call_id": "c", "output": '{"error": "nobody"}'}
    lines = shown(
        CREATED,
        {"type": "response.output_item.added", "item": call | {"status": "in_progress"}},
        {"type": "conversation.item.added", "item": call | {"status": "in_progress"}},
        {"type": "response.output_item.done", "item": whole},
        {"type": "conversation.item.done", "item": whole},
        done("completed"),
        {"type": "conversation.item.added", "item": result},
        {"type": "conversation.item.done", "item": result},
    )
    assert [line.split(maxsplit=1) for line in lines] == [
        ["tool", 'book {"day": "monday"}'],
        ["tool", '= {"error": "nobody"}'],
    ]
