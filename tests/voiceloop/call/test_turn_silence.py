"""What a client may ask for in a second, and for how long it hears nothing of the answer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, Fault, instant_backends
from tests.hand_clock import HandClock
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.call.session import TURN_STARTS_AT_ONCE, TURN_STARTS_PER_S
from voiceloop.telemetry.metrics import Metrics
from voiceloop.telemetry.owed_answer import OwedAnswer

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
METRIC = "voiceloop_turn_silent_seconds"
DELTA, DONE = "response.output_audio.delta", "response.done"


def counted(metrics: Metrics) -> tuple[int, float]:
    """How many silences there were, and their seconds in all."""
    number = metrics.registry.get_sample_value(f"{METRIC}_count")
    seconds = metrics.registry.get_sample_value(f"{METRIC}_sum")
    assert number is not None and seconds is not None
    return int(number), seconds


async def test_a_spoken_turn_is_silent_from_its_end_to_the_first_sound(clock: Clock) -> None:
    metrics = Metrics()
    backends = instant_backends(
        recognizer=FakeRecognizer(["what do you have"]),
        language_model=FakeLanguageModel(ttft_ms=400),
    )
    async with Caller(clock, backends, metrics=metrics) as caller:
        await caller.say(800)
        await caller.listen_until(DELTA)
        [told] = caller.of("input_audio_buffer.speech_stopped")
        number, seconds = counted(metrics)
        assert number == 1 and abs(seconds - (caller.first_audio_s() - told.at_s)) < 0.05
        await caller.wait_for(DONE)
    assert counted(metrics) == (number, seconds)  # the rest of the sound, and the end, are none


async def test_a_line_that_asks_to_wait_ends_the_silence(clock: Clock) -> None:
    metrics = Metrics()
    model = FakeLanguageModel(["Nine."], faults=[Fault("commit", "hang")])
    async with Caller(clock, instant_backends(language_model=model), metrics=metrics) as caller:
        caller.send("response.create")
        await caller.wait_for(DONE)
    number, seconds = counted(metrics)
    assert number == 1 and 1.4 <= seconds <= 1.7


async def test_a_caller_who_hangs_up_unanswered_was_left_in_silence(clock: Clock) -> None:
    metrics = Metrics()
    model = FakeLanguageModel(ttft_ms=60_000)
    mute = AgentConfig(waiting=Waiting(say=(), first_token_ms=30_000))
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, mute, metrics=metrics) as caller:
        caller.send("response.create")
        await caller.wait_quietly(4000)
    number, seconds = counted(metrics)
    assert number == 1 and 3.9 <= seconds <= 4.1


async def test_an_answer_in_text_leaves_nobody_in_silence(clock: Clock) -> None:
    metrics = Metrics()
    async with Caller(clock, metrics=metrics) as caller:
        caller.send("response.create", response={"output_modalities": ["text"]})
        await caller.wait_for(DONE)
    assert counted(metrics) == (0, 0.0)


def test_what_is_owed_is_owed_from_its_first_moment_and_ends_once() -> None:
    silences: list[float] = []
    clock = HandClock()
    owed = OwedAnswer(silences.append, clock)
    owed.end()
    owed.owe(clock() - 0.2)
    clock.now_s += 1.0
    owed.owe()
    owed.end()
    owed.end()
    owed.owe()
    owed.waive()
    owed.end()
    assert silences == [pytest.approx(1.2)]


async def test_who_tells_without_end_what_was_played_is_read_slower(clock: Clock) -> None:
    """While the caller speaks each may have the model read the conversation anew."""
    async with Caller(clock) as caller:
        caller.send("response.create")
        await caller.wait_for(DONE)
        [item] = caller.of("response.output_item.done")
        place = {"item_id": item.event["item"]["id"], "content_index": 0}
        began_s = clock()
        for number in range(int(TURN_STARTS_AT_ONCE) + 11):
            caller.send("conversation.item.truncate", **place, audio_end_ms=100 * (number % 2))
        caller.send("input_audio_buffer.clear")
        await caller.wait_for("input_audio_buffer.cleared")
        most = 11 / TURN_STARTS_PER_S
        assert most - 0.5 <= clock() - began_s <= most + 0.5


@pytest.mark.parametrize("asked", ["response.create", "input_audio_buffer.commit"])
async def test_who_asks_without_end_is_read_slower(clock: Clock, asked: str) -> None:
    async with Caller(clock) as caller:
        began_s, n_asked = clock(), int(TURN_STARTS_AT_ONCE) + 11
        for _ in range(n_asked):
            if asked == "input_audio_buffer.commit":
                await_audio = {"audio": "AAAA" * 1600}  # 100 ms of silence: nothing less is taken
                caller.send("input_audio_buffer.append", **await_audio)
                caller.send(asked)
            else:
                caller.send(asked, response={"output_modalities": ["text"]})
                caller.send("response.cancel")
        caller.send("input_audio_buffer.clear")
        await caller.wait_for("input_audio_buffer.cleared")
        most = 11 / TURN_STARTS_PER_S
        assert most - 0.5 <= clock() - began_s <= most + 0.5
