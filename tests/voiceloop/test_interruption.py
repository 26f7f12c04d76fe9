"""What a caller who speaks over the agent hears of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends
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
