"""The tools that an agent calls in a call: read from the wire, and answered if the server does not.

Owns which calls are open. A server that runs a tool itself puts its result behind the call; what it
leaves to the client is answered with what the file of scenarios says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from clients.connection import Received
from clients.evaluate.outcome import Called


class ToolWatch:
    """Reads every event. results: by tool, what the client answers."""

    def __init__(self, results: Mapping[str, Any]) -> None:
        self._results = results
        self._open: dict[str, str] = {}  # calls without a result: the tool's name by id
        self._called: list[Called] = []
        self._in_response = False  # whether the response that is under way has called something

    def take_calls(self) -> list[Called]:
        """Return the calls since this was last called."""
        taken, self._called = self._called, []
        return taken

    @property
    def is_settled(self) -> bool:
        """Whether nothing follows a response that has just ended."""
        return not self._open and not self._in_response

    def observe(self, received: Received) -> list[dict[str, Any]]:
        """Returns the events that the client answers with."""
        item = received.event.get("item") or {}
        match received.type:
            case "response.created":
                self._in_response = False
            case "response.output_item.done" if item.get("type") == "function_call":
                self._called.append(Called(item["name"], _arguments(item.get("arguments", ""))))
                self._open[item["call_id"]] = item["name"]
                self._in_response = True
            case "conversation.item.added" | "conversation.item.created":
                if item.get("type") == "function_call_output":
                    self._open.pop(item["call_id"], None)
            case "response.done":
                return self._answers()
        return []

    def _answers(self) -> list[dict[str, Any]]:
        ours = {id_: name for id_, name in self._open.items() if name in self._results}
        events: list[dict[str, Any]] = []
        for call_id, name in ours.items():
            output = json.dumps(self._results[name])
            item = {"type": "function_call_output", "call_id": call_id, "output": output}
            events.append({"type": "conversation.item.create", "item": item})
        return [*events, {"type": "response.create"}] if events else []


def _arguments(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}
