"""The stock openai package against a server: URL and a raw PCM16 24 kHz recording as arguments."""

from __future__ import annotations

import asyncio
import base64
import json
import sys

from openai import AsyncOpenAI, OpenAI

URL, SPEECH = sys.argv[1], open(sys.argv[2], "rb").read()
BASE = URL.replace("ws://", "http://") + "/v1"
CHUNK = 4800
TOOL = {
    "type": "function",
    "name": "hours",
    "description": "Opening hours.",
    "parameters": {"type": "object", "properties": {"day": {"type": "string"}}},
}


def client(key="none"):
    return AsyncOpenAI(base_url=BASE, websocket_base_url=URL + "/v1", api_key=key)


def message(text):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


async def until(connection, kind):
    seen = []
    async with asyncio.timeout(20):
        async for event in connection:
            assert event.type != "error", event
            seen.append(event)
            if event.type == kind:
                return seen
    raise AssertionError(kind)


def types(events):
    return [event.type for event in events]


async def text_turn(connection):
    await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
    await connection.conversation.item.create(item=message("hello"))
    await connection.response.create()
    done = (await until(connection, "response.done"))[-1].response
    assert done.status == "completed" and done.output[0].content[0].text
    assert done.usage.total_tokens > 0


async def spoken_turn(connection):
    detection = {"type": "server_vad", "silence_duration_ms": 300}
    audio = {"input": {"turn_detection": detection, "transcription": {"model": "whisper-1"}}}
    await connection.session.update(
        session={"type": "realtime", "output_modalities": ["audio"], "audio": audio}
    )
    feeding = asyncio.create_task(feed(connection, SPEECH + bytes(24_000 * 2)))
    seen = types(await until(connection, "response.done"))
    await feeding
    order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "response.created",
        "response.output_audio.delta",
        "response.done",
    ]
    assert [seen.index(kind) for kind in order] == sorted(seen.index(kind) for kind in order)
    assert "conversation.item.input_audio_transcription.completed" in seen


async def feed(connection, data):
    for start in range(0, len(data), CHUNK):
        piece = base64.b64encode(data[start : start + CHUNK]).decode()
        await connection.input_audio_buffer.append(audio=piece)
        await asyncio.sleep(CHUNK / 48_000)


async def tool_turn(connection):
    session = {"type": "realtime", "output_modalities": ["text"], "tools": [TOOL]}
    await connection.session.update(session=session)
    await connection.conversation.item.create(item=message("use the tool"))
    await connection.response.create()
    call = (await until(connection, "response.done"))[-1].response.output[-1]
    assert call.type == "function_call" and call.name == "hours", call
    assert json.loads(call.arguments) == {"day": "monday"}
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "nine to five"}
    await connection.conversation.item.create(item=output)
    await connection.response.create()
    done = (await until(connection, "response.done"))[-1].response
    assert "nine to five" in done.output[0].content[0].text


async def manual_turn(connection):
    audio = {"input": {"turn_detection": None}}
    await connection.session.update(session={"type": "realtime", "audio": audio})
    for start in range(0, len(SPEECH), 48_000):
        piece = base64.b64encode(SPEECH[start : start + 48_000]).decode()
        await connection.input_audio_buffer.append(audio=piece)
    await connection.input_audio_buffer.commit()
    await until(connection, "input_audio_buffer.committed")
    await connection.response.create()
    assert (await until(connection, "response.done"))[-1].response.status == "completed"


async def cancel(connection):
    await connection.session.update(session={"type": "realtime", "output_modalities": ["audio"]})
    await connection.response.create()
    await until(connection, "response.output_audio.delta")
    await connection.response.cancel()
    done = (await until(connection, "response.done"))[-1].response
    assert done.status == "cancelled" and done.status_details.reason == "client_cancelled"


async def secret():
    found = await client().realtime.client_secrets.create(
        session={"type": "realtime", "instructions": "from the secret"}
    )
    async with client(found.value).realtime.connect(model="any") as connection:
        event = await connection.recv()
        assert event.session.instructions == "from the secret"


def synchronous():
    stock = OpenAI(base_url=BASE, websocket_base_url=URL + "/v1", api_key="none")
    with stock.realtime.connect(model="any") as connection:
        connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        connection.conversation.item.create(item=message("hello"))
        connection.response.create()
        for event in connection:
            if event.type == "response.done":
                assert event.response.output[0].content[0].text
                return


async def main():
    for turn in (text_turn, spoken_turn, tool_turn, manual_turn, cancel):
        async with client().realtime.connect(model="gpt-realtime") as connection:
            await turn(connection)
        print(turn.__name__, "ok", flush=True)
    await secret()
    print("secret ok")


asyncio.run(main())
synchronous()
print("synchronous ok")
