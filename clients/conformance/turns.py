"""The few turns that most checks start from: ask in words, answer in words, sound or a tool call.

Owns the prompts and how a finished reply is collected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clients.conformance.check import Json, expect, of
from clients.conformance.line import Line

TELL = "Please tell me a little about your opening hours and what I can order."
TOOL: Json = {
    "type": "function",
    "name": "opening_hours",
    "description": "Look up the opening hours of a day.",
    "parameters": {
        "type": "object",
        "properties": {"day": {"type": "string", "description": "a day of the week"}},
        "required": ["day"],
    },
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One response: its events from ``response.created`` to ``response.done``, in order."""

    events: list[Json]

    @property
    def id(self) -> str:
        return str(of(self.events[0], "response.id"))

    @property
    def done(self) -> Json:
        """The response object of ``response.done``."""
        body: Json = of(self.events[-1], "response")
        return body

    @property
    def types(self) -> list[str]:
        return [str(event["type"]) for event in self.events]

    def expect_answered(self) -> None:
        """Raises: Failed."""
        expect_answered(self.done)

    def of(self, kind: str) -> list[Json]:
        """Return its events of one type. Raises: Failed: there is none."""
        found = [event for event in self.events if event["type"] == kind]
        expect(bool(found), f"{kind} in the response", "none")
        return found

    def item(self, kind: str) -> Json:
        """The first output item of this type. Raises: Failed."""
        for item in of(self.done, "output"):
            if item.get("type") == kind:
                found: Json = item
                return found
        kinds = [item.get("type") for item in of(self.done, "output")]
        expect(False, f"an output item of type {kind}", kinds)
        raise AssertionError


def expect_answered(response: Json) -> None:
    """Expect that it came to its end; a model may be cut at its own limit of tokens. Raises:
    Failed.
    """
    status = of(response, "status")
    expect(status in ("completed", "incomplete"), "the response to be completed", status)


async def say(line: Line, text: str, role: str = "user", **item: Any) -> None:
    """A message of this role, in words."""
    kind = "output_text" if role == "assistant" else "input_text"
    content = [{"type": kind, "text": text}]
    whole = {"type": "message", "role": role, "content": content, **item}
    await line.send("conversation.item.create", item=whole)
    await line.until(
        "conversation.item.added", "conversation.item.done", "conversation.item.created"
    )


async def begin(line: Line, **response: Any) -> str:
    """``response.create``; returns the id of the response once it was created."""
    await line.send("response.create", response=response)
    return str(of(await line.until("response.created"), "response.id"))


async def finish(line: Line, response_id: str) -> Reply:
    """Wait for the end of this response. Raises: Failed."""
    while True:
        done = await line.until("response.done")
        if of(done, "response.id") == response_id:
            break
    start = next(
        i
        for i, event in enumerate(line.events)
        if event["type"] == "response.created" and of(event, "response.id") == response_id
    )
    return Reply([event for event in line.events[start:] if _belongs(event, response_id)])


async def ask(line: Line, text: str = TELL, **response: Any) -> Reply:
    """Ask in words and wait for the whole reply."""
    await say(line, text)
    return await finish(line, await begin(line, **response))


async def ask_in_text(line: Line, text: str = TELL, **response: Any) -> Reply:
    return await ask(line, text, output_modalities=["text"], **response)


async def ask_in_sound(line: Line, text: str = TELL, **response: Any) -> Reply:
    return await ask(line, text, output_modalities=["audio"], **response)


async def call_tool(line: Line, **response: Any) -> Reply:
    """A reply that must call the tool. Raises: Failed: it does not."""
    text = "Which are the opening hours on Monday? Use the tool."
    fields = {"tools": [TOOL], "tool_choice": "required", "output_modalities": ["text"]}
    reply = await ask(line, text, **{**fields, **response})
    reply.item("function_call")
    return reply


def _belongs(event: Json, response_id: str) -> bool:
    """Return whether the event is of this response, or of the conversation while it ran."""
    body = event.get("response")
    own = body.get("id") if isinstance(body, dict) else event.get("response_id", response_id)
    return bool(own == response_id)
