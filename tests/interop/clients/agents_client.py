"""The openai-agents package's realtime session against a server."""

from __future__ import annotations

import asyncio
import sys

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner

URL, SPEECH = sys.argv[1], open(sys.argv[2], "rb").read()
CHUNK = 4800
called = []


@function_tool
def hours(day: str) -> str:
    """Opening hours."""
    called.append(day)
    return "nine to five"


async def until_audio_ends(session):
    n_audio, problems = 0, []
    async with asyncio.timeout(20):
        async for event in session:
            if event.type == "audio":
                n_audio += 1
            elif event.type == "error":
                problems.append(event.error)
            elif event.type == "raw_model_event" and event.data.type in ("error", "exception"):
                problems.append(event.data)
            elif event.type == "audio_end":
                break
    assert not problems, problems
    return n_audio


async def main():
    agent = RealtimeAgent(name="Ava", instructions="Be brief.", tools=[hours])
    detection = {"type": "semantic_vad", "interrupt_response": True}
    settings = {"model_name": "gpt-realtime", "turn_detection": detection}
    runner = RealtimeRunner(agent, config={"model_settings": settings})
    model = {"url": f"{URL}/v1/realtime", "api_key": "none"}
    async with await runner.run(model_config=model) as session:
        for start in range(0, len(SPEECH), CHUNK):
            await session.send_audio(SPEECH[start : start + CHUNK])
            await asyncio.sleep(CHUNK / 48_000)
        for _ in range(15):
            await session.send_audio(bytes(CHUNK))
            await asyncio.sleep(CHUNK / 48_000)
        assert await until_audio_ends(session) > 0
        print("spoken_turn ok", flush=True)
        await session.send_message("use the tool")
        assert await until_audio_ends(session) > 0
        assert called == ["monday"], called
        print("tool_turn ok", flush=True)
        said = [getattr(item, "role", item.type) for item in session._history]
        assert said.count("user") == 2 and said.count("assistant") >= 2, said
    print("history ok")


asyncio.run(main())
