"""The stock openai package, synchronous: one thread reads, another one speaks."""

from __future__ import annotations

import base64
import json
import threading
import time

from openai import OpenAI
from scenario import (
    ASKED,
    CHOSEN,
    CHUNK_S,
    HTTP_URL,
    PARAMETERS,
    RESULT,
    SPEECH,
    URL,
    USE_THE_TOOL,
    chunks,
    passed,
)

CLIENT = OpenAI(base_url=f"{HTTP_URL}/v1", websocket_base_url=f"{URL}/v1", api_key="none")
TOOL = {"type": "function", "name": "hours", "description": "Hours.", "parameters": PARAMETERS}


def until(connection, kind):
    """The first event of that kind. The test that runs this script bounds the wait."""
    for event in connection:
        assert event.type != "error", event
        if event.type == kind:
            return event
    raise AssertionError(kind)


def update(connection, turn_detection, modality="audio", **fields):
    audio = {"input": {"turn_detection": turn_detection}}
    session = {"type": "realtime", "output_modalities": [modality], "audio": audio, **fields}
    connection.session.update(session=session)
    until(connection, "session.updated")


def say(connection, text):
    content = [{"type": "input_text", "text": text}]
    item = {"type": "message", "role": "user", "content": content}
    connection.conversation.item.create(item=item)


def append(connection, piece):
    connection.input_audio_buffer.append(audio=base64.b64encode(piece).decode())


def speak(connection):
    """The recording and three seconds of silence, in time, from a thread of its own."""

    def feed():
        for piece in chunks(SPEECH, 3):
            if stop.is_set():
                return
            append(connection, piece)
            time.sleep(CHUNK_S)

    stop = threading.Event()
    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    return lambda: (stop.set(), thread.join())


def text_turn(connection):
    say(connection, "hello")
    update(connection, None, modality="text")
    connection.response.create()
    assert until(connection, "response.done").response.output[0].content[0].text


def spoken_turn(connection):
    update(connection, {"type": "semantic_vad"})
    hush = speak(connection)
    until(connection, "input_audio_buffer.speech_stopped")
    until(connection, "response.output_audio.delta")
    assert until(connection, "response.done").response.status == "completed"
    hush()


def tool_call(connection):
    update(connection, None, modality="text", tools=[TOOL])
    say(connection, USE_THE_TOOL)
    connection.response.create(response={"tool_choice": {"type": "function", "name": "hours"}})
    call = until(connection, "response.function_call_arguments.done")
    assert call.name == "hours" and isinstance(json.loads(call.arguments)["day"], str), call
    until(connection, "response.done")
    output = {"type": "function_call_output", "call_id": call.call_id, "output": RESULT}
    connection.conversation.item.create(item=output)
    connection.response.create(response={"tool_choice": "none"})
    assert until(connection, "response.output_text.done").text


def barge_in(connection):
    update(connection, {"type": "semantic_vad"})
    say(connection, ASKED)
    connection.response.create()
    first = until(connection, "response.output_audio.delta")
    hush = speak(connection)
    until(connection, "input_audio_buffer.speech_started")
    item_id = first.item_id
    connection.conversation.item.truncate(item_id=item_id, content_index=0, audio_end_ms=600)
    until(connection, "conversation.item.truncated")
    assert until(connection, "response.done").response.status == "completed"
    hush()


def manual_commit(connection):
    update(connection, None)
    for piece in chunks(SPEECH):
        append(connection, piece)
    connection.input_audio_buffer.commit()
    until(connection, "input_audio_buffer.committed")
    connection.response.create()
    assert until(connection, "response.done").response.status == "completed"


def cancel(connection):
    say(connection, ASKED)
    connection.response.create()
    until(connection, "response.output_audio.delta")
    connection.response.cancel()
    assert until(connection, "response.done").response.status == "cancelled"


for name in CHOSEN:
    with CLIENT.realtime.connect(model="gpt-realtime") as connection:
        globals()[name](connection)
    passed(name)
