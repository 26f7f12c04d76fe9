"""Rules that hold for every event, tried on a tour of a session: words, sound, a tool, an error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from clients.conformance.check import Checks, Json, Target, expect
from clients.conformance.event_shapes import ITEM_NULLABLE, NULLABLE, REQUIRED
from clients.conformance.line import Line, session
from clients.conformance.turns import TOOL, ask_in_sound, begin, finish, say

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

checks = Checks("events")


@asynccontextmanager
async def toured(target: Target) -> AsyncIterator[Line]:
    """A session in which something of everything has happened."""
    async with session(target, audio={"input": {"turn_detection": None}}) as line:
        await line.append_audio(target.speech)
        await line.send("input_audio_buffer.commit")
        await line.until("input_audio_buffer.committed")
        await say(line, "You are a guide.", "system")
        await ask_in_sound(line, "Hello.")
        await say(line, "Which are the opening hours on Monday? Use the tool.")
        call = {"tools": [TOOL], "tool_choice": "required", "output_modalities": ["text"]}
        await finish(line, await begin(line, metadata={"tour": "1"}, **call))
        await line.send("response.cancel")
        await line.error("a cancel with nothing to cancel")
        yield line


@checks("event-ids")
async def event_ids(target: Target) -> None:
    """Every event has an event_id of its own: clients that validate stop at the first without."""
    async with toured(target) as line:
        for event in line.events:
            event_id = event.get("event_id")
            named = isinstance(event_id, str) and event_id != ""
            expect(named, f"an event_id in {event['type']}", event_id)
        ids = [event["event_id"] for event in line.events]
        expect(len(set(ids)) == len(ids), "each event_id once", f"{len(ids) - len(set(ids))} again")


@checks("no-vendor-events")
async def no_vendor_events(target: Target) -> None:
    """A client that asked for nothing else gets events of the protocol only."""
    async with toured(target) as line:
        found = set(line.types()) - set(REQUIRED)
        expect(not found, "documented events only", ", ".join(sorted(found)))


@checks("required-fields")
async def required_fields(target: Target) -> None:
    """Every event has all the fields its type requires."""
    async with toured(target) as line:
        for event in line.events:
            for name in REQUIRED.get(event["type"], ()):
                expect(name in event, f"{name} in {event['type']}", "an event without it")


@checks("items-without-nulls")
async def items_without_nulls(target: Target) -> None:
    """An optional of an item that is not set is left out; null there loses a client its history."""
    async with toured(target) as line:
        for event in line.events:
            for item in items_of(event):
                found = set(nulls(item)) - ITEM_NULLABLE
                where = f"an item of {event['type']}"
                expect(not found, f"no null in {where}", ", ".join(sorted(found)))


@checks("documented-nulls")
async def documented_nulls(target: Target) -> None:
    """Elsewhere too only what the protocol documents as nullable is null."""
    async with toured(target) as line:
        for event in line.events:
            found = set(nulls(event)) - NULLABLE
            what = f"no undocumented null in {event['type']}"
            expect(not found, what, ", ".join(sorted(found)))


@checks("frames-under-1-mib")
async def frames_small(target: Target) -> None:
    """Each frame is under 1 MiB, the most that a stock WebSocket client reads."""
    async with toured(target) as line:
        biggest = max(line.n_bytes)
        expect(biggest < 1024 * 1024, "frames under 1 MiB", f"one of {biggest} bytes")


def items_of(event: Json) -> Iterator[Json]:
    """The conversation items within an event."""
    if isinstance(event.get("item"), dict):
        yield event["item"]
    response = event.get("response")
    if isinstance(response, dict):
        yield from (item for item in response.get("output") or [] if isinstance(item, dict))


def nulls(value: Any) -> Iterator[str]:
    """The keys whose value is null, at any depth; a client's own metadata is its own."""
    if isinstance(value, dict):
        for key, child in value.items():
            if child is None:
                yield key
            elif key != "metadata":
                yield from nulls(child)
    elif isinstance(value, list):
        for child in value:
            yield from nulls(child)
