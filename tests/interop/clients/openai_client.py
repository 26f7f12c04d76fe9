"""The stock openai package, asynchronous, against a server."""

from __future__ import annotations

import asyncio
import base64
import json

from openai import AsyncOpenAI
from scenario import (
    ASKED,
    CHOSEN,
    CHUNK_S,
    HTTP_URL,
    LIMIT_S,
    PARAMETERS,
    RESULT,
    SPEECH,
    URL,
    USE_THE_TOOL,
    chunks,
    passed,
)

TOOL = {
    "type": "function",
    "name": "hours",
    "description": "Opening hours of a day.",
    "parameters": PARAMETERS,
}


def client(key="none"):
    return AsyncOpenAI(
        base_url=f"{HTTP_URL}/v1", websocket_base_url=f"{URL}/v1", api_key=key, max_retries=0
    )


def message(text):
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


async def until(connection, kind):
    seen = []
    async with asyncio.timeout(LIMIT_S):
        async for event in connection:
            assert event.type != "error", event
            seen.append(event)
            if event.type == kind:
                return seen
    raise AssertionError(kind)


async def update(connection, turn_detection, modality="audio", **fields):
    audio = {"input": {"turn_detection": turn_detection, "transcription": {"model": "whisper-1"}}}
    session = {"type": "realtime", "output_modalities": [modality], "audio": audio, **fields}
    await connection.session.update(session=session)
    await until(connection, "session.updated")


async def feed(connection, data):
    for piece in data:
        await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
        await asyncio.sleep(CHUNK_S)


async def answer(connection):
    return (await until(connection, "response.done"))[-1].response


async def text_turn(connection):
    await connection.conversation.item.create(item=message("hello"))
    await update(connection, None, modality="text")
    await connection.response.create()
    done = await answer(connection)
    assert done.status == "completed" and done.output[0].content[0].text
    usage = done.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0
    assert usage.output_token_details.text_tokens > 0


async def spoken_turn(connection):
    await update(connection, {"type": "semantic_vad"})
    feeding = asyncio.create_task(feed(connection, chunks(SPEECH, 3)))
    seen = await until(connection, "response.done")
    feeding.cancel()
    types = [event.type for event in seen]
    order = [
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "response.created",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.done",
    ]
    places = [types.index(kind) for kind in order]
    assert places == sorted(places), types
    heard = [e for e in seen if e.type == "conversation.item.input_audio_transcription.completed"]
    assert len(heard) == 1 and heard[0].transcript and heard[0].usage.seconds > 1


async def tool_call(connection):
    named = {"type": "function", "name": "hours"}
    await update(connection, None, modality="text", tools=[TOOL])
    await connection.conversation.item.create(item=message(USE_THE_TOOL))
    await connection.response.create(response={"tool_choice": named})
    call = (await answer(connection)).output[-1]
    assert call.type == "function_call" and call.name == "hours", call
    assert isinstance(json.loads(call.arguments)["day"], str), call
    output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    await connection.conversation.item.create(item=output)
    await connection.response.create(response={"tool_choice": "none"})
    done = await answer(connection)
    assert done.status == "completed" and done.output[0].content[0].text, done


async def barge_in(connection):
    await update(connection, {"type": "semantic_vad"})
    await connection.conversation.item.create(item=message(ASKED))
    await connection.response.create()
    first = (await until(connection, "response.output_audio.delta"))[-1]
    feeding = asyncio.create_task(feed(connection, chunks(SPEECH, 3)))
    await until(connection, "input_audio_buffer.speech_started")
    await connection.conversation.item.truncate(
        item_id=first.item_id, content_index=0, audio_end_ms=600
    )
    seen = await until(connection, "conversation.item.truncated")
    cut = next((e.response for e in seen if e.type == "response.done"), None)
    if cut is not None:  # else all of the reply had been sent, and was still being played
        assert cut.status == "cancelled" and cut.status_details.reason == "turn_detected", cut
    assert (await answer(connection)).status == "completed"
    feeding.cancel()


async def manual_commit(connection):
    await update(connection, None)
    for piece in chunks(SPEECH):
        await connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())
    await connection.input_audio_buffer.commit()
    await until(connection, "input_audio_buffer.committed")
    await connection.response.create()
    assert (await answer(connection)).status == "completed"


async def cancel(connection):
    await connection.conversation.item.create(item=message(ASKED))
    await connection.response.create()
    await until(connection, "response.output_audio.delta")
    await connection.response.cancel()
    done = await answer(connection)
    assert done.status == "cancelled" and done.status_details.reason == "client_cancelled"


async def client_secret(connection):
    found = await client().realtime.client_secrets.create(
        session={"type": "realtime", "instructions": "from the secret"}
    )
    async with client(found.value).realtime.connect(model="any") as opened:
        event = await opened.recv()
        assert event.session.instructions == "from the secret"


async def resume(_):
    """The line breaks twice; the package dials again, and the conversation goes on."""
    ticket = {}

    def again(event):
        return {"extra_query": {**event.extra_query, "voiceloop.returns": ticket["returns"]}}

    async def until_resumed(connection, kind):
        async with asyncio.timeout(LIMIT_S):
            async for event in connection:
                if event.type == "voiceloop.resume_ticket":
                    ticket.update(event.to_dict())
                elif event.type == "session.created" and ticket:
                    resuming = {"type": "voiceloop.resume", "ticket": ticket["ticket"]}
                    await connection.send(resuming)
                assert event.type != "error", event
                if event.type == kind:
                    return event

    opened = client().realtime.connect(
        model="any", extra_query={"voiceloop.resume": "1"}, on_reconnecting=again
    )
    async with opened as connection:
        await connection.session.update(session={"type": "realtime", "output_modalities": ["text"]})
        for n_turns in (1, 2):
            await connection.conversation.item.create(item=message(ASKED))
            await connection.response.create()
            done = await until_resumed(connection, "response.done")
            assert done.response.status == "completed", done
            await until_resumed(connection, "voiceloop.resume_ticket")
            connection._connection.transport.abort()
            resumed = await until_resumed(connection, "voiceloop.resumed")
            assert resumed.to_dict()["items"] == 2 * n_turns, resumed


async def main():
    for name in CHOSEN:
        async with client().realtime.connect(model="gpt-realtime") as connection:
            await globals()[name](connection)
        passed(name)


asyncio.run(main())
