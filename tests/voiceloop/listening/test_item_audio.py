"""Audio in a conversation item is heard, and what a tool found reaches the caller once."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from audio.frames import Samples
from audio.resample import Resampler
from tests.callers import RATE_HZ, Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    Reply,
    instant_backends,
    quiet,
    utterance,
)
from voiceloop.backends import ChatMessage, RecognizerOptions, ToolCall, VoiceOptions
from voiceloop.workers.waits import call_of

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
CALL = ToolCall("call_1", "weather", "{}")
TOOL = {"type": "function", "name": "weather"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "Sunny."}


def clip(**more: Any) -> dict[str, Any]:
    audio = base64.b64encode(utterance(900, RATE_HZ).astype("<i2").tobytes()).decode()
    part = {"type": "input_audio", "audio": audio, **more}
    text = {"type": "input_text", "text": "listen:"}
    return {"id": "clip", "type": "message", "role": "user", "content": [text, part]}


async def test_an_items_audio_is_heard_before_the_reply_that_was_asked_for(clock: Clock) -> None:
    model = FakeLanguageModel()
    recognizer = FakeRecognizer(["two teas please"], final_delay_ms=400)
    async with Caller(
        clock, instant_backends(recognizer=recognizer, language_model=model)
    ) as caller:
        caller.send("session.update", session={"audio": {"input": {"transcription": {}}}})
        caller.send("conversation.item.create", item=clip())
        caller.send("response.create")
        await caller.wait_for("response.done")
        completed = caller.of("conversation.item.input_audio_transcription.completed")
    assert model.prompts[0][-1] == ChatMessage("user", "listen: two teas please")
    assert [one.event["transcript"] for one in completed] == ["two teas please"]
    assert not recognizer.open_streams


async def test_words_of_an_item_are_not_owed_like_those_of_a_turn(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So half a minute of sound at once makes nobody's answers late in the ladder's eyes."""
    recognizer, voice = FakeRecognizer(["two teas please"]), FakeVoice()
    heard: list[tuple[str, bool]] = []
    spoken: list[str] = []
    open_recognizer, open_voice = recognizer.open, voice.open

    async def opening(stream_id: str, options: RecognizerOptions) -> Any:
        heard.append((stream_id, options.is_batch))
        return await open_recognizer(stream_id, options)

    async def opening_voice(stream_id: str, options: VoiceOptions) -> Any:
        spoken.append(stream_id)
        return await open_voice(stream_id, options)

    monkeypatch.setattr(recognizer, "open", opening)
    monkeypatch.setattr(voice, "open", opening_voice)
    async with Caller(clock, instant_backends(recognizer=recognizer, voice=voice)) as caller:
        caller.send("conversation.item.create", item=clip())
        caller.send("response.create")
        await caller.wait_for("response.done")
        call_id = caller.session.protocol.session_id
    assert sorted(is_batch for _, is_batch in heard) == [False, True]
    [line] = [stream_id for stream_id, is_batch in heard if not is_batch]
    assert {call_of(stream_id) for stream_id in (line, *spoken)} == {call_id}


async def test_a_long_clip_is_converted_in_slices_between_which_others_are_served(
    clock: Clock,
) -> None:
    recognizer = FakeRecognizer(["two teas please"])
    slices: list[int] = []

    def push(resampler: Resampler, samples: Samples) -> Samples:
        slices.append(len(samples))
        return push_whole(resampler, samples)

    push_whole, Resampler.push = Resampler.push, push  # type: ignore[method-assign]
    try:
        async with Caller(clock, instant_backends(recognizer=recognizer)) as caller:
            caller.send("session.update", session={
                "audio": {"input": {"format": {"type": "audio/pcmu"}, "transcription": {}}},
            })  # fmt: skip
            audio = base64.b64encode(bytes(8000 * 60)).decode()
            part = {"type": "input_audio", "audio": audio}
            item = {"id": "clip", "type": "message", "role": "user", "content": [part]}
            caller.send("conversation.item.create", item=item)
            await caller.wait_for("conversation.item.input_audio_transcription.completed")
    finally:
        Resampler.push = push_whole  # type: ignore[method-assign]
    assert sum(slices) >= 8000 * 60 and max(slices) <= 8000 * 0.2


async def test_an_items_own_transcript_is_believed(clock: Clock) -> None:
    model = FakeLanguageModel()
    async with Caller(clock, instant_backends(language_model=model)) as caller:
        caller.send("conversation.item.create", item=clip(transcript="one tea"))
        caller.send("response.create")
        await caller.wait_for("response.done")
        assert not caller.of("conversation.item.input_audio_transcription.completed")
    assert model.prompts[0][-1] == ChatMessage("user", "listen: one tea")


async def test_an_item_that_cannot_be_heard_does_not_hold_the_reply(clock: Clock) -> None:
    recognizer = FakeRecognizer(faults=(Fault("finalize"),))
    async with Caller(clock, instant_backends(recognizer=recognizer)) as caller:
        caller.send("session.update", session={"audio": {"input": {"transcription": {}}}})
        caller.send("conversation.item.create", item=clip())
        caller.send("response.create")
        await caller.wait_for("conversation.item.input_audio_transcription.failed")
        await caller.wait_for("response.done")
    assert caller.statuses() == ["completed"]


async def test_a_reply_cancelled_before_its_words_are_known_never_begins(clock: Clock) -> None:
    model = FakeLanguageModel()
    recognizer = FakeRecognizer(final_delay_ms=400)
    async with Caller(
        clock, instant_backends(recognizer=recognizer, language_model=model)
    ) as caller:
        caller.send("conversation.item.create", item=clip())
        caller.send("response.create")
        caller.send("response.cancel")
        await caller.wait_for("response.done")
        await caller.wait_quietly(1000)
    assert caller.statuses() == ["cancelled"] and not model.prompts


async def test_a_deleted_items_audio_is_not_heard_and_holds_no_reply(clock: Clock) -> None:
    model = FakeLanguageModel()
    recognizer = FakeRecognizer(["two teas", "and a cake"], final_delay_ms=400)
    async with Caller(
        clock, instant_backends(recognizer=recognizer, language_model=model)
    ) as caller:
        for name in ("one", "two", "three"):
            caller.send("conversation.item.create", item=clip() | {"id": name})
        caller.send("response.create")
        caller.send("conversation.item.delete", item_id="two")
        caller.send("conversation.item.delete", item_id="three")
        await caller.wait_for("response.done")
    assert [m.content for m in model.prompts[0] if m.role == "user"] == ["listen: two teas"]
    assert recognizer.n_taken == 1 and not recognizer.open_streams
    assert caller.statuses() == ["completed"]


@pytest.mark.parametrize("audio", ["@@@", "AA==", 7])
async def test_audio_that_is_none_is_refused_with_its_path(clock: Clock, audio: Any) -> None:
    async with Caller(clock) as caller:
        caller.send("conversation.item.create", item=clip() | {"content": [
            {"type": "input_audio", "audio": audio}]})  # fmt: skip
        error = (await caller.wait_for("error")).event["error"]
        assert not caller.session.protocol.conversation.items()
    assert error["param"] == "item.content[0].audio"


def answer(messages: tuple[ChatMessage, ...]) -> Reply:
    if any(message.role == "tool" for message in messages):
        return Reply("It is sunny, and here is the rest of it.")
    return Reply("", (CALL,))


async def test_a_tools_result_in_mid_speech_is_told_once_after_the_caller(clock: Clock) -> None:
    model = FakeLanguageModel(answer)
    recognizer = FakeRecognizer(["what about the weather", "and tomorrow too"])
    async with Caller(
        clock, instant_backends(recognizer=recognizer, language_model=model)
    ) as caller:
        caller.send("session.update", session={"tools": [TOOL]})
        await caller.say(900)
        await caller.listen_until("response.done")
        await caller.play(utterance(400, RATE_HZ, 200)[: RATE_HZ * 3 // 10])  # speaks on
        await caller.wait_for("input_audio_buffer.speech_started", count=2)
        caller.send("conversation.item.create", item=RESULT)
        caller.send("response.create")
        await caller.say(700)
        end_s = clock()
        await caller.listen_until("response.done", count=2)
        await caller.play(quiet(3000, RATE_HZ))
    assert caller.statuses() == ["completed", "completed"]
    assert len(model.prompts) == 2 and caller.first_audio_s() >= end_s
    roles = [message.role for message in model.prompts[-1]]
    assert roles.count("tool") == 1 and model.prompts[-1][-1].content == "and tomorrow too"
