"""The openai-agents package's realtime session against a server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.model_inputs import (
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
)
from scenario import (
    ASKED,
    CHOSEN,
    CHUNK_S,
    INSTRUCTIONS,
    LIMIT_S,
    RESULT,
    SPEECH,
    URL,
    USE_THE_TOOL,
    chunks,
    passed,
)

VAD = {"type": "semantic_vad", "interrupt_response": True}
called = []
forced = []  # the session whose settings ask for a call


@function_tool
async def hours(day: str) -> str:
    """Opening hours of a day."""
    called.append(day)
    while forced:  # the reply to the result is to be spoken
        auto = {"model_name": "gpt-realtime", "tool_choice": "auto", "turn_detection": VAD}
        update = RealtimeModelSendSessionUpdate(session_settings=auto)
        await forced.pop().model.send_event(update)
    return RESULT


@asynccontextmanager
async def opened(turn_detection=VAD, **settings):
    tools = [hours] if settings.pop("tools", False) else []
    agent = RealtimeAgent(name="Ava", instructions=INSTRUCTIONS, tools=tools)
    settings |= {"model_name": "gpt-realtime", "turn_detection": turn_detection}
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    model = {"url": f"{URL}/v1/realtime", "api_key": "none"}
    async with await runner.run(model_config=model) as session:
        yield session


async def until(session, kind):
    """Events up to the first of that kind (of the session, or the server's under "raw")."""
    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for event in session:
            raw = event.data if event.type == "raw_model_event" else None
            assert event.type != "error", event.error
            assert raw is None or raw.type not in ("error", "exception"), raw
            seen.append(event)
            if event.type == kind or (raw is not None and raw.type == "raw_server_event"
                                      and raw.data["type"] == kind):  # fmt: skip
                return seen
    raise AssertionError(kind)


async def answered(session):
    """Up to the end of a reply; one taken back, because the caller went on, is no reply."""
    seen = []
    while not seen or seen[-1].data.data["response"]["status"] == "cancelled":
        seen += await until(session, "response.done")
    return seen


def has(seen, kind):
    return any(event.type == kind for event in seen)


async def feed(session, data):
    for piece in data:
        await session.send_audio(piece)
        await asyncio.sleep(CHUNK_S)


async def send_raw(session, kind):
    message = RealtimeModelSendRawMessage(message={"type": kind})
    await session.model.send_event(message)


async def text_turn():
    async with opened() as session:
        await session.send_message("hello")
        assert has(await until(session, "response.done"), "audio")


async def spoken_turn():
    async with opened() as session:
        feeding = asyncio.create_task(feed(session, chunks(SPEECH, 3)))
        assert has(await answered(session), "audio")
        feeding.cancel()
        said = [getattr(item, "role", item.type) for item in session._history]
        assert said == ["user", "assistant"], said


async def tool_call():
    async with opened(tools=True, tool_choice="required") as session:
        forced.append(session)
        await session.send_message(USE_THE_TOOL)
        await until(session, "tool_end")
        assert len(called) == 1 and isinstance(called[0], str), called
        await until(session, "audio")
        done = (await until(session, "response.done"))[-1].data.data["response"]
        assert done["status"] == "completed" and len(called) == 1, (done, called)


async def barge_in():
    async with opened() as session:
        await session.send_message(ASKED)
        await until(session, "audio")
        feeding = asyncio.create_task(feed(session, chunks(SPEECH, 3)))
        await until(session, "audio_interrupted")
        await until(session, "input_audio_buffer.committed")
        assert has(await answered(session), "audio")
        feeding.cancel()


async def manual_commit():
    async with opened(turn_detection=None) as session:
        *first, last = chunks(SPEECH)
        for piece in first:
            await session.send_audio(piece)
        await session.send_audio(last, commit=True)
        await send_raw(session, "response.create")
        assert has(await until(session, "response.done"), "audio")


async def cancel():
    async with opened(turn_detection=None) as session:
        await session.send_message(ASKED)
        await until(session, "audio")
        await session.interrupt()
        seen = await until(session, "response.done")
        raw = seen[-1].data.data["response"]
        assert raw["status"] == "cancelled", raw


async def main():
    for name in CHOSEN:
        await globals()[name]()
        passed(name)


asyncio.run(main())
