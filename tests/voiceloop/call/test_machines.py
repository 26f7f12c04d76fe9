"""A call that we placed, and who answers it: nobody waits for it to be known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, quiet, tone, utterance
from tests.voiceloop.call.test_call_tools import PHONE, MemoryPhone, calling
from tests.voiceloop.call.test_sound_line import MemoryLine
from voiceloop.agent import AgentConfig
from voiceloop.call.answered_by import AnsweredBy, Tone
from voiceloop.call_manners import CallManners
from voiceloop.telephony import PhoneCall

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
PLACED = replace(PHONE, phone=PhoneCall("sip", "+4930", "+4940", is_outbound=True))
GREETING = "Hello, this is the clinic about your appointment."


def placed(
    clock: Clock, machine: Literal["tell", "message", "hang_up"], *heard: str, **manners: str
) -> Caller:
    agent = AgentConfig(
        greeting=GREETING,
        call=CallManners(machine=machine, message="Please call us back.", **manners),  # type: ignore[arg-type]
    )
    recognizer = FakeRecognizer(list(heard), ms_per_word=150)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["I am the model."])
    )
    line, phone = MemoryLine(clock), MemoryPhone(clock)
    return Caller(clock, backends, agent, hello=PLACED, line=line, phone=phone)


async def until_closed(caller: Caller) -> None:
    while not caller.transport.closed:
        await caller.wait_quietly(20)


async def test_a_machine_is_left_a_message_after_its_tone(clock: Clock) -> None:
    async with placed(clock, "message", "you have reached the smiths leave a message") as caller:
        await caller.say(1500)
        (told,) = caller.of("voiceloop.answered_by")
        await caller.say(1500)
        await caller.wait_quietly(600)
        await caller.play(tone(500, 24_000, hz=1000.0))
        tone_ended_s = clock()
        assert len(caller.of("output_audio_buffer.started")) == 1  # the greeting's
        await caller.listen_until("output_audio_buffer.started", count=2)
        assert 0.3 < clock() - tone_ended_s < 0.7
        await until_closed(caller)
    assert told.event["by"] == "machine"
    assert caller.transcript().endswith("Please call us back.")
    assert "model" not in caller.transcript()
    assert caller.transport.closed == (1000, "a machine has answered")


async def test_a_machine_without_a_tone_is_spoken_to_when_it_is_silent(clock: Clock) -> None:
    async with placed(clock, "message", "you have reached the smiths") as caller:
        await caller.say(2000)
        ended_s = clock()
        await caller.listen_until("output_audio_buffer.started", count=2)
        assert 1.5 < clock() - ended_s < 3.0
        await until_closed(caller)
    assert caller.transcript().endswith("Please call us back.")


async def test_a_machine_is_hung_up_on_at_once(clock: Clock) -> None:
    async with placed(clock, "hang_up", "the number you have dialed is not in service") as caller:
        await caller.say(1800)
        await until_closed(caller)
    assert caller.transport.closed == (1000, "a machine has answered")


async def test_a_person_is_answered_as_ever_and_told_of_late(clock: Clock) -> None:
    async with placed(clock, "message", "hello", "who is this") as caller:
        await caller.say(400)
        ended_s = clock()
        await caller.listen_until("response.done", count=2)
        waited_s = caller.of("output_audio_buffer.started")[-1].at_s - ended_s
    agent = AgentConfig(greeting=GREETING)
    recognizer = FakeRecognizer(["hello", "who is this"], ms_per_word=150)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["I am the model."])
    )
    async with Caller(clock, backends, agent, hello=PLACED, line=MemoryLine(clock)) as without:
        await without.say(400)
        ended_s = clock()
        await without.listen_until("response.done", count=2)
        plain_s = without.of("output_audio_buffer.started")[-1].at_s - ended_s
    assert waited_s == pytest.approx(plain_s, abs=1e-6)
    assert not caller.of("voiceloop.answered_by")


async def test_who_asks_who_is_calling_is_told(clock: Clock) -> None:
    heard = "please state your name and the reason for your call"
    said = "This is Mill Clinic about an appointment."
    async with placed(clock, "tell", heard, screening=said) as caller:
        await caller.say(1600)
        await caller.listen_until("response.done", count=2)
    assert [told.event["by"] for told in caller.of("voiceloop.answered_by")] == ["screening"]
    assert caller.transcript().endswith(said)


async def test_the_model_may_know_a_machine_first(clock: Clock) -> None:
    agent = AgentConfig(call=CallManners(machine="hang_up"))
    backends = calling("voicemail", "{}")
    line, phone = MemoryLine(clock), MemoryPhone(clock)
    async with Caller(clock, backends, agent, hello=PLACED, line=line, phone=phone) as caller:
        await caller.say(700)
        await until_closed(caller)
    assert caller.transport.closed == (1000, "a machine has answered")


def test_only_a_single_tone_of_its_length_is_one() -> None:
    def heard(sound: np.ndarray) -> bool:
        found = Tone()
        found.hear(np.concatenate((sound, quiet(100, 24_000))).astype("<i2").tobytes())
        return found.was_heard

    assert heard(tone(300, 24_000, hz=1400.0)) and heard(tone(900, 24_000, hz=440.0))
    assert not heard(tone(100, 24_000, hz=1000.0)) and not heard(tone(3000, 24_000, hz=1000.0))
    both = tone(400, 24_000, hz=770.0) // 2 + tone(400, 24_000, hz=1336.0) // 2
    assert not heard(both)  # a key
    assert not heard(utterance(800, 24_000)) and not heard(quiet(500, 24_000))


def test_only_a_greeting_without_a_pause_is_too_long_for_a_person() -> None:
    long, paused, house = AnsweredBy(), AnsweredBy(), AnsweredBy()
    house.observe_words("mill clinic how can i help".split())
    assert long.observe_speech(2800.0, 0.0, 100.0, 2900.0) is None
    assert long.observe_speech(3000.0, 0.0, 100.0, 3100.0) == "machine"
    assert long.observe_speech(3700.0, 0.0, 100.0, 3800.0) is None  # told once
    assert paused.observe_speech(2000.0, 600.0, 100.0, 2700.0) is None
    assert paused.observe_speech(4000.0, 0.0, 100.0, 4100.0) is None
    assert house.observe_speech(4000.0, 0.0, 100.0, 4100.0) is None


def test_what_a_person_says_behind_a_greeting_may_be_long() -> None:
    person = AnsweredBy()
    person.observe_words(["hello"])
    person.end_segment()
    assert person.observe_speech(6000.0, 0.0, 3000.0, 9000.0) is None
