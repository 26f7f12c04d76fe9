"""Faults put into our server at the wire, each a rule of the protocol broken in one way.

A mutant is chosen by the query (``?mutant=NAME``), so one server carries them all. It changes
the server's events on their way out, the client's on their way in, or the answer at the door.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Json = dict[str, Any]
State = MutableMapping[str, Any]
Change = Callable[[Json, State], Iterable[Json]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """``check`` must fail on it. ``row``: the row of the field's fault table it commits, if any.

    ``outgoing`` and ``incoming`` turn one event into those that go on in its place; ``door``
    changes an ASGI message that is no event (the accept, an HTTP answer); ``scope`` the request.
    """

    name: str
    check: str
    row: str = ""
    outgoing: Change | None = None
    incoming: Change | None = None
    door: Callable[[Message], Message] | None = None
    scope: Callable[[Scope], None] | None = None


class MutatedApp:
    """The application behind the mutant that the query names; without one, as it is."""

    def __init__(self, app: ASGIApp, mutants: Iterable[Mutant]) -> None:
        self._app = app
        self._mutants = {mutant.name: mutant for mutant in mutants}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = parse_qs(scope.get("query_string", b"").decode())
        mutant = self._mutants.get(query.get("mutant", [""])[0])
        if mutant is None:
            await self._app(scope, receive, send)
            return
        if mutant.scope is not None:
            mutant.scope(scope)
        wire = MutatedWire(mutant, receive, send)
        await self._app(scope, wire.receive, wire.send)


class MutatedWire:
    """One connection's two directions."""

    def __init__(self, mutant: Mutant, receive: Receive, send: Send) -> None:
        self._mutant, self._receive, self._send = mutant, receive, send
        self._state: State = {}
        self._waiting: list[Message] = []

    async def send(self, message: Message) -> None:
        mutant = self._mutant
        text = message.get("text") if message["type"] == "websocket.send" else None
        if text is None:
            await self._send(mutant.door(message) if mutant.door is not None else message)
            return
        events: Iterable[Json] = [json.loads(text)]
        if mutant.outgoing is not None:
            events = mutant.outgoing(*events, self._state)
        for event in events:
            await self._send({"type": "websocket.send", "text": json.dumps(event)})

    async def receive(self) -> Message:
        while not self._waiting:
            message = await self._receive()
            event = _event_of(message)
            if self._mutant.incoming is None or event is None:
                return message
            self._waiting = [
                message if "frame" in changed else {**message, "text": json.dumps(changed)}
                for changed in self._mutant.incoming(event, self._state)
            ]
        return self._waiting.pop(0)


def _event_of(message: Message) -> Json | None:
    """The JSON object in a client's frame; a frame that is none counts as {"frame": it}."""
    if message["type"] != "websocket.receive":
        return None
    frame = message.get("text")
    try:
        event = json.loads(frame) if frame is not None else None
    except (ValueError, RecursionError):
        event = None
    return event if isinstance(event, dict) else {"frame": str(frame)}


# --- ways to break an event ----------------------------------------------------------------------


def drop(*kinds: str) -> Change:
    """Events of these types never arrive."""
    return lambda event, state: () if event.get("type") in kinds else (event,)


def twice(kind: str) -> Change:
    return lambda event, state: (event, event) if event["type"] == kind else (event,)


def put(kind: str, path: str, value: Any) -> Change:
    """The field at this dotted path has another value. ``*`` is every element of a list."""
    return _at(kind, path, lambda holder, key: holder.__setitem__(key, copy.deepcopy(value)))


def leave_out(kind: str, path: str) -> Change:
    return _at(kind, path, lambda holder, key: holder.pop(key, None))


def both(*changes: Change) -> Change:
    """One change after the other."""

    def change(event: Json, state: State) -> Iterable[Json]:
        events = [event]
        for one in changes:
            events = [changed for before in events for changed in one(before, state)]
        return events

    return change


def before(kind: str, extra: Json) -> Change:
    """An event that does not belong there goes ahead of each of this type."""
    ahead = {"event_id": "event_ahead", **extra}
    return lambda event, state: (ahead, event) if event["type"] == kind else (event,)


def after(kind: str, make: Callable[[Json], Json]) -> Change:
    """An event made from each of this type follows it."""
    return lambda event, state: (event, make(event)) if event["type"] == kind else (event,)


def swapped(first: str, second: str) -> Change:
    """Events of type ``first`` are held back until the next ``second`` has gone."""

    def change(event: Json, state: State) -> Iterable[Json]:
        if event["type"] == first and not state.get("done"):
            state["held"] = event
            return ()
        if event["type"] == second and "held" in state:
            state["done"] = True
            return (event, state.pop("held"))
        return (event,)

    return change


def only_if(test: Callable[[Json], bool], change: Change) -> Change:
    return lambda event, state: change(event, state) if test(event) else (event,)


def _at(kind: str, path: str, act: Callable[[Any, Any], Any]) -> Change:
    """Act on the holder and the key at the path, in events of this type ("*": in all)."""
    *steps, last = path.split(".")

    def change(event: Json, state: State) -> Iterable[Json]:
        if kind in ("*", event["type"]):
            holders: list[Any] = [event]
            for step in steps:
                holders = [child for holder in holders for child in _children(holder, step)]
            for holder in holders:
                if isinstance(holder, dict):
                    act(holder, last)
        return (event,)

    return change


def _children(holder: Any, step: str) -> list[Any]:
    if isinstance(holder, list):
        return holder if step == "*" else holder[int(step) : int(step) + 1]
    return [holder[step]] if isinstance(holder, dict) and step in holder else []
