"""livekit-plugins-openai's RealtimeModel against a server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai import realtime
from openai.types.realtime.realtime_audio_input_turn_detection import SemanticVad
from scenario import (
    ASKED,
    CHOSEN,
    CHUNK_S,
    HTTP_URL,
    INSTRUCTIONS,
    LIMIT_S,
    RESULT,
    SPEECH,
    USE_THE_TOOL,
    chunks,
    passed,
)

VAD = SemanticVad(type="semantic_vad", create_response=True, interrupt_response=True)


@llm.function_tool
async def hours(day: str) -> str:
    """Opening hours of a day."""
    return RESULT


class Heard:
    """What the session told of itself."""

    def __init__(self, session):
        self.errors = []
        self.seen = []
        self.generations = asyncio.Queue()
        session.on("error", self.errors.append)
        session.on("input_speech_started", lambda event: self.seen.append("started"))
        session.on("input_audio_transcription_completed", self.transcribed)
        session.on("generation_created", self.generations.put_nowait)
        self.started = asyncio.Event()
        session.on("input_speech_started", lambda event: self.started.set())

    def transcribed(self, event):
        self.seen.append("words")

    async def next(self):
        """The generation that the server began by itself."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                generation = await self.generations.get()
                if not generation.user_initiated:
                    return generation


@asynccontextmanager
async def opened(turn_detection=VAD):
    async with aiohttp.ClientSession() as http:
        model = realtime.RealtimeModel(
            base_url=f"{HTTP_URL}/v1",
            api_key="none",
            http_session=http,
            turn_detection=turn_detection,
        )
        session = model.session()
        heard = Heard(session)
        await session.update_instructions(INSTRUCTIONS)
        yield session, heard
        await session.aclose()
        assert not heard.errors, heard.errors


async def read(generation):
    """(frames of audio, text, calls) of a whole generation."""
    n_audio, text, calls = 0, "", []
    async with asyncio.timeout(LIMIT_S):
        async for message in generation.message_stream:

            async def words(message=message):
                return "".join([str(piece) async for piece in message.text_stream])

            reading = asyncio.create_task(words())
            async for _ in message.audio_stream:
                n_audio += 1
            text += await reading
        async for call in generation.function_stream:
            calls.append(call)
    return n_audio, text, calls


async def add(session, role, content):
    context = session.chat_ctx.copy()
    context.add_message(role=role, content=content)
    await session.update_chat_ctx(context)


async def feed(session, data):
    for piece in data:
        session.push_audio(rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2))
        await asyncio.sleep(CHUNK_S)


async def text_turn():
    async with opened() as (session, _):
        await add(session, "user", "hello")
        n_audio, text, _ = await read(await session.generate_reply())
        assert n_audio and text, (n_audio, text)


async def spoken_turn():
    async with opened() as (session, heard):
        feeding = asyncio.create_task(feed(session, chunks(SPEECH, 3)))
        n_audio, _, _ = await read(await heard.next())
        feeding.cancel()
        assert n_audio and heard.seen[0] == "started" and "words" in heard.seen, heard.seen


async def tool_call():
    async with opened() as (session, _):
        await session.update_tools([hours])
        await add(session, "user", USE_THE_TOOL)
        _, _, calls = await read(await session.generate_reply(tool_choice="required"))
        assert [call.name for call in calls] == ["hours"], calls
        assert isinstance(json.loads(calls[0].arguments)["day"], str), calls
        context = session.chat_ctx.copy()
        context.items.append(
            llm.FunctionCallOutput(
                call_id=calls[0].call_id, name="hours", output=RESULT, is_error=False
            )
        )
        await session.update_chat_ctx(context)
        n_audio, text, _ = await read(await session.generate_reply(tool_choice="none"))
        assert n_audio and text, (n_audio, text)


async def barge_in():
    async with opened() as (session, heard):
        await add(session, "user", ASKED)
        generation = await session.generate_reply()
        async with asyncio.timeout(LIMIT_S):
            async for message in generation.message_stream:
                await anext(aiter(message.audio_stream))
                break
        feeding = asyncio.create_task(feed(session, chunks(SPEECH, 3)))
        async with asyncio.timeout(LIMIT_S):
            await heard.started.wait()
        session.truncate(message_id=message.message_id, modalities=["audio"], audio_end_ms=600)
        n_audio, _, _ = await read(await heard.next())
        feeding.cancel()
        assert n_audio


async def manual_commit():
    async with opened(turn_detection=None) as (session, _):
        for piece in chunks(SPEECH):
            session.push_audio(rtc.AudioFrame(piece, 24_000, 1, len(piece) // 2))
        session.commit_audio()
        n_audio, text, _ = await read(await session.generate_reply())
        assert n_audio and text, (n_audio, text)


async def cancel():
    async with opened() as (session, _):
        await add(session, "user", ASKED)
        generation = await session.generate_reply()
        reading = asyncio.create_task(read(generation))
        await asyncio.sleep(0.5)
        session.interrupt()
        await reading


async def main():
    for name in CHOSEN:
        await globals()[name]()
        passed(name)


asyncio.run(main())
