"""What a caller who speaks over the agent hears of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.agent import AgentConfig, BargeIn

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


async def test_a_caller_who_barges_in_hears_silence_before_it_is_decided(clock: Clock) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "something else now"], ms_per_word=400),
        language_model=FakeLanguageModel([LONG]),
    )
    agent = AgentConfig(barge_in=BargeIn(least_words=3, words_ms=450))
    async with Caller(clock, backends, agent, chunk_ms=20) as caller:
        await caller.say(700)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(800)
        onset_s = clock()
        await caller.say(1500)
        (decided,) = caller.of("input_audio_buffer.speech_started")[1:]
        last = max(
            r.at_s for r in caller.of("response.output_audio.delta") if r.at_s < decided.at_s
        )
    assert 1000 * (last - onset_s) <= 180  # the fade
    assert 1000 * (decided.at_s - onset_s) >= 300


async def test_a_caller_who_goes_on_as_the_answer_begins_has_it_taken_back(clock: Clock) -> None:
    model = FakeLanguageModel(lambda m: f"You said {m[-1].content}.")
    recognizer = FakeRecognizer(["i want a latte", "with oat milk"], ms_per_word=200)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(120)
        onset_s = clock()
        await caller.say(700)
        await caller.listen_until("response.done", count=2)
        messages = caller.session.protocol.conversation.messages()
    assert caller.statuses() == ["cancelled", "completed"]
    started, done = caller.of("input_audio_buffer.speech_started")[1], caller.of("response.done")[0]
    assert caller.transport.received.index(started) < caller.transport.received.index(done)
    assert started.at_s - onset_s <= 0.18  # no word is waited for
    assert [(m.role, m.content) for m in messages] == [
        ("user", "i want a latte with oat milk"),
        ("assistant", "You said i want a latte with oat milk."),
    ]


async def test_a_bug_in_a_turn_costs_the_turn_and_not_the_call(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(messages: object) -> str:
        return LONG

    voice = FakeVoice()
    backends = instant_backends(language_model=FakeLanguageModel(reply), voice=voice)
    async with Caller(clock, backends) as caller:
        voice.open = None  # type: ignore[assignment,method-assign]
        await caller.say(800)
        await caller.listen_until("response.done")
        del voice.open
        await caller.say(800)
        await caller.listen_until("response.done", count=2, limit_ms=20_000)
    assert caller.statuses() == ["failed", "completed"]
    assert "found a bug" in caplog.text
