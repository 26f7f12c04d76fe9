"""Turns that the server detects: a caller speaks in real time, is answered, and interrupts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from clients.conformance.check import Checks, Json, Target, expect, expect_equal, expect_order, of
from clients.conformance.input_checks import COMPLETED
from clients.conformance.line import Line, session
from clients.conformance.session_checks import detection
from clients.conformance.turns import expect_answered
from clients.uplink import Uplink

checks = Checks("speech")

STARTED = "input_audio_buffer.speech_started"
STOPPED = "input_audio_buffer.speech_stopped"
COMMITTED = "input_audio_buffer.committed"
HEARD_ORDER = (STARTED, STOPPED, COMMITTED, "response.created", "response.done")
QUICK: Json = {"silence_duration_ms": 300}


@asynccontextmanager
async def microphone(line: Line) -> AsyncIterator[Uplink]:
    """A line that is never silent: 20 ms frames in real time, room noise between utterances."""
    uplink = Uplink(line)
    sending = asyncio.create_task(uplink.run())
    try:
        yield uplink
    finally:
        sending.cancel()
        await asyncio.wait([sending])


async def answered(target: Target, kind: str, **fields: object) -> Line:
    """One spoken turn from the caller's first sound to response.done."""
    async with session(target, audio=detection(kind, **fields)) as line:
        async with microphone(line) as caller:
            caller.say(target.speech)
            await line.until("response.done")
        return line


def first(line: Line, kind: str) -> Json:
    """The first event of the type. Raises: Failed."""
    found = next((event for event in line.events if event["type"] == kind), None)
    expect(found is not None, f"{kind} in a spoken turn", "none")
    assert found is not None
    return found


@checks("spoken-turn-order")
async def spoken_turn(target: Target) -> None:
    """server_vad: speech started, stopped, committed, the user's item, then the response."""
    line = await answered(target, "server_vad", **QUICK)
    expect_order(line.types(), HEARD_ORDER)
    kinds = line.types()
    item = kinds.index("conversation.item.added")
    between = kinds.index(COMMITTED) < item < kinds.index("response.created")
    expect(between, "the user's item between committed and response.created", "it elsewhere")


@checks("spoken-turn-item")
async def spoken_item(target: Target) -> None:
    """The item announced as speech starts is the one committed and added; its times grow."""
    line = await answered(target, "server_vad", **QUICK)
    item_id = of(first(line, STARTED), "item_id")
    for kind in (STOPPED, COMMITTED):
        expect_equal(f"{kind}'s item_id", item_id, of(first(line, kind), "item_id"))
    added = first(line, "conversation.item.added")
    expect_equal("the added item's id", item_id, of(added, "item.id"))
    start_ms, end_ms = (
        of(first(line, STARTED), "audio_start_ms"), of(first(line, STOPPED), "audio_end_ms")
    )  # fmt: skip
    expect(0 <= start_ms < end_ms, "audio_start_ms before audio_end_ms", (start_ms, end_ms))


@checks("semantic-vad-turn")
async def semantic_turn(target: Target) -> None:
    """semantic_vad ends a turn by itself, in the same order of events."""
    line = await answered(target, "semantic_vad", eagerness="high")
    expect_order(line.types(), HEARD_ORDER)


@checks("create-response-off")
async def create_response_off(target: Target) -> None:
    """With create_response false a turn is committed and not answered."""
    settings = detection("server_vad", create_response=False, **QUICK)
    async with session(target, audio=settings) as line, microphone(line) as caller:
        caller.say(target.speech)
        await line.until(COMMITTED)
        await line.settle()
        expect("response.created" not in line.types(), "no response", "one")


@checks("spoken-turn-transcribed")
async def spoken_transcribed(target: Target) -> None:
    """A detected turn is transcribed for those who asked, under the item's id."""
    settings = detection("server_vad", create_response=False, **QUICK)
    settings["input"]["transcription"] = {"model": "whisper-1"}
    async with session(target, audio=settings) as line, microphone(line) as caller:
        caller.say(target.speech)
        done = await line.until(COMPLETED)
        expect_equal("its item_id", of(first(line, COMMITTED), "item_id"), of(done, "item_id"))


@checks("barge-in")
async def barge_in(target: Target) -> None:
    """A caller who speaks up ends the reply: speech_started first, then cancelled/turn_detected."""
    settings = detection("server_vad", **QUICK)
    async with session(target, audio=settings) as line, microphone(line) as caller:
        await line.send("response.create", response={"output_modalities": ["audio"]})
        await line.until("response.output_audio.delta")
        start = len(line.events)
        caller.say(target.speech)
        done = await line.until("response.done")
        kinds = line.types(start)
        expect(STARTED in kinds, "speech_started before the response ends", "none")
        expect_equal("status", "cancelled", of(done, "response.status"))
        reason = of(done, "response.status_details.reason")
        expect_equal("status_details.reason", "turn_detected", reason)
        cut = kinds.index(STARTED)
        late = [k for k in kinds[cut:] if k == "response.output_audio.delta"]
        expect(
            not late, "no audio after speech_started: clients have flushed", f"{len(late)} deltas"
        )


@checks("barge-in-off")
async def barge_in_off(target: Target) -> None:
    """With interrupt_response false the reply runs to its end while the caller speaks."""
    settings = detection("server_vad", interrupt_response=False, create_response=False, **QUICK)
    async with session(target, audio=settings) as line, microphone(line) as caller:
        await line.send("response.create", response={"output_modalities": ["audio"]})
        await line.until("response.output_audio.delta")
        caller.say(target.speech)
        done = await line.until("response.done")
        expect_answered(of(done, "response"))


@checks("idle-timeout")
async def idle_timeout(target: Target) -> None:
    """A caller who stays silent for idle_timeout_ms: timeout_triggered, then the agent speaks."""
    settings = detection("server_vad", idle_timeout_ms=target.idle_timeout_ms)
    async with session(target, audio=settings, output_modalities=["text"]) as line:
        async with microphone(line):
            await line.send("response.create")
            await line.until("response.done")
            fired = await line.until("input_audio_buffer.timeout_triggered", "response.created")
            wanted = "timeout_triggered before the agent speaks"
            expect(fired["type"] != "response.created", wanted, "a response at once")
            expect(of(fired, "audio_start_ms") <= of(fired, "audio_end_ms"), "its times", "crossed")
            await line.until("response.created")
            await line.until("response.done")


@checks("silence-is-silent")
async def silence(target: Target) -> None:
    """A line on which nobody speaks brings no event at all."""
    async with session(target, audio=detection("server_vad", **QUICK)) as line:
        start = len(line.events)
        async with microphone(line):
            await line.settle()
        found = line.types(start)
        expect(not found, "no event from room noise", ", ".join(found))
