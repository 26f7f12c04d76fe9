"""livekit-plugins-openai's RealtimeModel against a server."""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai import realtime

URL, SPEECH = sys.argv[1], open(sys.argv[2], "rb").read()
CHUNK = 4800


@llm.function_tool
async def hours(day: str) -> str:
    """Opening hours."""
    return "nine to five"


async def read(generation):
    n_audio, text, calls = 0, "", []

    async def read_message(message):
        nonlocal n_audio, text

        async def words():
            nonlocal text
            async for piece in message.text_stream:
                text += str(piece)

        reading = asyncio.create_task(words())
        async for _ in message.audio_stream:
            n_audio += 1
        await reading

    async with asyncio.timeout(20):
        async for message in generation.message_stream:
            await read_message(message)
        async for call in generation.function_stream:
            calls.append(call)
    return n_audio, text, calls


async def main():
    async with aiohttp.ClientSession() as http:
        model = realtime.RealtimeModel(
            base_url=URL.replace("ws://", "http://") + "/v1", api_key="none", http_session=http
        )
        session = model.session()
        seen, errors, generations = [], [], asyncio.Queue()
        session.on("error", errors.append)
        session.on("input_speech_started", lambda event: seen.append("started"))
        session.on("input_audio_transcription_completed", lambda event: seen.append("words"))
        session.on("generation_created", generations.put_nowait)
        await session.update_instructions("Be brief.")
        await session.update_tools([hours])
        context = llm.ChatContext.empty()
        context.add_message(role="user", content="hello")
        await session.update_chat_ctx(context)
        n_audio, text, _ = await read(await session.generate_reply())
        await generations.get()
        assert n_audio and text, (n_audio, text)
        print("generate_reply ok", flush=True)
        data = SPEECH + bytes(24_000 * 3)
        for start in range(0, len(data), CHUNK):
            piece = data[start : start + CHUNK]
            session.push_audio(rtc.AudioFrame(piece, 24000, 1, len(piece) // 2))
            await asyncio.sleep(CHUNK / 48_000)
        async with asyncio.timeout(20):
            n_audio, text, _ = await read(await generations.get())
        assert n_audio and seen[:1] == ["started"] and "words" in seen, (n_audio, seen)
        print("spoken_turn ok", flush=True)
        context = session.chat_ctx.copy()
        context.add_message(role="user", content="use the tool")
        await session.update_chat_ctx(context)
        _, _, calls = await read(await session.generate_reply())
        assert [call.name for call in calls] == ["hours"], calls
        print("tool_call ok", flush=True)
        await session.aclose()
        assert not errors, errors


asyncio.run(main())
