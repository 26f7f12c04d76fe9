"""The stock openai package over plain HTTP: chat, tools, schemas, speech, files of speech."""

from __future__ import annotations

import io
import json
import sys
import wave
from pathlib import Path

import openai
from openai import OpenAI

URL, SPEECH = sys.argv[1], Path(sys.argv[2]).read_bytes()
CLIENT = OpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "hours",
        "parameters": {"type": "object", "properties": {"day": {"type": "string"}}},
    },
}


def chat() -> None:
    whole = CLIENT.chat.completions.create(model="any", messages=HELLO, temperature=0, seed=1)
    assert whole.choices[0].message.content.startswith("Certainly")
    assert whole.usage.total_tokens > 0
    stream = CLIENT.chat.completions.create(
        model="any", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens > 0


def tools() -> None:
    messages = [{"role": "user", "content": "use the tool"}]
    message = CLIENT.chat.completions.create(model="any", messages=messages, tools=[TOOL])
    message = message.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "hours" and json.loads(call.function.arguments)
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "eight to six"}]
    last = CLIENT.chat.completions.create(model="any", messages=messages, tools=[TOOL])
    assert last.choices[0].message.content == "It is eight to six."
    with CLIENT.chat.completions.stream(model="any", messages=messages[:1], tools=[TOOL]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "hours"


def speech() -> None:
    for form in ("mp3", "opus", "flac", "wav", "pcm"):
        answer = CLIENT.audio.speech.create(
            model="tts-1", voice="alloy", input="Good morning.", response_format=form
        )
        assert len(answer.read()) > 500, form
    with CLIENT.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input="Good morning to you.", response_format="pcm"
    ) as streamed:
        assert sum(len(piece) for piece in streamed.iter_bytes()) > 10_000


def transcription() -> None:
    data = io.BytesIO()
    with wave.open(data, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(24_000)
        file.writeframes(SPEECH)
    heard = CLIENT.audio.transcriptions.create(
        model="whisper-1", file=("caller.wav", data.getvalue())
    )
    assert heard.text == "well this is what i said"
    verbose = CLIENT.audio.transcriptions.create(
        model="whisper-1",
        file=("caller.wav", data.getvalue()),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
    )
    assert [word.word for word in verbose.words] == heard.text.split()
    assert verbose.segments and verbose.duration > 1


def logprobs() -> None:
    answer = CLIENT.chat.completions.create(
        model="any", messages=HELLO, logprobs=True, top_logprobs=1, n=2, presence_penalty=0.5
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    told = answer.choices[0].logprobs.content
    assert "".join(one.token for one in told) == answer.choices[0].message.content
    assert told[0].top_logprobs[0].bytes


def the_rest() -> None:
    assert CLIENT.models.list().data[0].id == "voiceloop"
    try:
        CLIENT.chat.completions.create(model="any", messages=HELLO, logit_bias={"1": 5})
    except openai.BadRequestError as error:
        assert error.code == "unsupported_parameter" and error.param == "logit_bias"
    else:
        raise AssertionError("expected a refusal")


chat()
tools()
logprobs()
speech()
transcription()
the_rest()
