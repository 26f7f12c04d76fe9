"""The line of a person at a desk, who cannot run a tool of the client.

The server leaves such a call to its client. This one ends it with an error at once, as the page
does, so that the agent says so: else the caller would hear nothing until the server's own timeout,
and in push to talk, where the client decides what follows, nothing at all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, Self

from clients.agent_card import read_card
from clients.connection import Received
from clients.errors import ConnectionFailed
from clients.resuming import ResumingConnection


class DeskLine(ResumingConnection):
    """As `ResumingConnection`. ``client_tools``: names that the server leaves to its client."""

    client_tools: frozenset[str] = frozenset()

    @classmethod
    async def open(
        cls, url: str, *, key: str | None = None, extras: dict[str, str] | None = None
    ) -> Self:
        line = await super().open(url, key=key, extras=extras)
        with suppress(ConnectionFailed):  # another server has no such card, and no tools of its own
            line.client_tools = frozenset((await read_card(url, key)).client_tools)
        return line

    async def events(self) -> AsyncIterator[Received]:
        """As `ResumingConnection.events`; after an unanswered tool call its error is sent."""
        async for received in super().events():
            yield received
            if received.type == "response.done":
                with suppress(ConnectionFailed):  # the events end next, and say why
                    await self._refuse_calls(received.event["response"])

    async def _refuse_calls(self, response: dict[str, Any]) -> None:
        """Answer every call of a response that has one for this client: nobody is here who can do
        it.
        """
        output = response.get("output") or ()
        calls = [item for item in output if item["type"] == "function_call"]
        is_ours = any(call["name"] in self.client_tools for call in calls)
        if not is_ours or response.get("status") != "completed":
            return
        for call in calls:
            error = json.dumps({"error": f"nobody is here who can do {call['name']}"})
            answer = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": error,
            }
            await self.send({"type": "conversation.item.create", "item": answer})
        await self.send({"type": "response.create"})
