"""A protocol with readable ids, and its events as dicts."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import msgspec

from voiceloop.realtime.commands import Command
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.settings import SessionSettings


def counted_ids() -> Callable[[str], str]:
    """item_1, item_2, resp_1 ..."""
    counters: dict[str, itertools.count[int]] = {}
    return lambda prefix: f"{prefix}_{next(counters.setdefault(prefix, itertools.count(1)))}"


class Wire:
    """A protocol under test: ``say`` a client event, read what it ``sent``."""

    def __init__(self, *, is_beta: bool = False, **settings: Any) -> None:
        start = msgspec.structs.replace(SessionSettings(), **settings)
        self.protocol = Protocol(start, new_id=counted_ids(), expires_at=1, is_beta=is_beta)
        self.protocol.connect()
        self.protocol.take_outgoing()

    def say(self, kind: str, **fields: Any) -> list[Command]:
        return self.protocol.receive(json.dumps({"type": kind, **fields}))

    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(frame.data) for frame in self.protocol.take_outgoing()]

    def types(self) -> list[str]:
        return [event["type"] for event in self.sent()]

    def update(self, **session: Any) -> dict[str, Any]:
        """session.update; returns the event that answers it."""
        self.say("session.update", session=session)
        (event,) = self.sent()
        return event

    def error_code(self) -> str:
        """The code of the one event sent, which must be an error."""
        (event,) = self.sent()
        assert event["type"] == "error", event
        code: str = event["error"]["code"]
        return code
