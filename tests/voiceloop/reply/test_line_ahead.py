"""Lines that need no model, spoken before the turn is over: released, replaced, failed, dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Fault, instant_backends
from voiceloop.agent import AgentConfig, AgentSlot
from voiceloop.backends import VoiceOptions
from voiceloop.config import Ahead, AheadPart, Config
from voiceloop.knowledge.answers import ApprovedAnswer
from voiceloop.reply.answerers import FixedAnswer
from voiceloop.reply.preemptive import MOST_CHARACTERS

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
FIRST_AUDIO_MS = 150.0

ASKED = "What is your phone number?"
NUMBER = "five five five oh one four two one one two"
READ_BACK = "I have 5 5 5, 0 1 4, 2 1 1 2, is that right?"
SLOTS = AgentConfig(slots=(AgentSlot("phone number", "phone", name="phone"),), eagerness="low")
WIFI, BIRDS = "Bluebird, all small letters.", "Nine of them nest here."
ANSWERS = AgentConfig(
    answer=(
        ApprovedAnswer(("what is the wifi password",), WIFI),
        ApprovedAnswer(("what is the wifi password of the birds",), BIRDS),
    ),
    eagerness="low",
)


class SlowVoice(FakeVoice):
    """Counts its streams."""

    def __init__(self, *faults: Fault, ms_per_char: float = 60.0) -> None:
        super().__init__(first_audio_ms=FIRST_AUDIO_MS, faults=faults, ms_per_char=ms_per_char)
        self.n_opened = 0

    async def open(self, stream_id: str, options: VoiceOptions):
        self.n_opened += 1
        return await super().open(stream_id, options)


def models(voice: FakeVoice, *heard: str, ms_per_word: float = 200.0):
    recognizer = FakeRecognizer(list(heard), ms_per_word=ms_per_word)
    model = FakeLanguageModel([ASKED, "Booked."], p_end_of_turn=lambda text: 0.9)
    return instant_backends(recognizer=recognizer, language_model=model, voice=voice)


async def a_call(
    clock: Clock, voice: FakeVoice, agent: AgentConfig, *heard: str, off: tuple[AheadPart, ...] = ()
) -> tuple[Caller, float]:
    """Turn after turn; the caller, and the milliseconds from the last one's last sound."""
    config, end_s = Config(anticipation=Ahead(off)), 0.0
    async with Caller(clock, models(voice, *heard), agent, config) as caller:
        for n_turns, words in enumerate(heard, 1):
            end_s = await caller.say(200.0 * len(words.split()))
            await caller.listen_until("voiceloop.timeline", count=n_turns)
    last_id = caller.of("response.created")[-1].event["response"]["id"]
    return caller, 1000 * (caller.first_audio_s(last_id) - end_s)


async def test_a_value_that_is_said_back_is_spoken_before_the_turn_is_over(clock: Clock) -> None:
    heard = ("book a table", NUMBER)
    caller, ahead_ms = await a_call(clock, SlowVoice(), SLOTS, *heard)
    other, after_ms = await a_call(clock, SlowVoice(), SLOTS, *heard, off=("held_clause",))
    for call in (caller, other):
        assert call.transcript() == ASKED + READ_BACK
    assert after_ms - ahead_ms == pytest.approx(FIRST_AUDIO_MS, abs=25)
    told, untold = (call.of("voiceloop.timeline")[-1].event["timeline"] for call in (caller, other))
    assert told["answered_by"] == "slots" and told["held_ms"] > 0 and untold["held_ms"] == 0.0
    assert sum(stage["ms"] for stage in told["stages"]) == pytest.approx(told["gap_ms"], abs=0.01)


async def test_an_approved_answer_is_spoken_ahead_too_and_at_once(clock: Clock) -> None:
    voice = SlowVoice()
    caller, _ = await a_call(clock, voice, ANSWERS, "what is the wifi password")
    assert caller.transcript() == WIFI and voice.n_opened == 1 and not voice.open_streams
    assert caller.of("voiceloop.timeline")[-1].event["timeline"]["held_ms"] > 0


async def test_a_caller_who_goes_on_hears_the_line_of_the_whole_turn(clock: Clock) -> None:
    voice = SlowVoice()
    backends = models(voice, "what is the wifi password of the birds")
    async with Caller(clock, backends, ANSWERS) as caller:
        await caller.say(1000)
        await caller.wait_quietly(400)
        assert voice.n_opened == 1 and not caller.of("response.created")
        await caller.say(600)
        await caller.listen_until("voiceloop.timeline")
        sample = caller.services.metrics.registry.get_sample_value
        assert (sample("voiceloop_wasted_audio_ms_total") or 0) > 500
    assert caller.transcript() == BIRDS and voice.n_opened == 2 and not voice.open_streams


@pytest.mark.parametrize("place", ["open", "feed", "finish"])
async def test_a_line_that_failed_is_spoken_anew_for_its_reply(clock: Clock, place: str) -> None:
    voice = SlowVoice(Fault(place))
    caller, _ = await a_call(clock, voice, ANSWERS, "what is the wifi password")
    assert caller.transcript() == WIFI and caller.statuses() == ["completed"]
    assert voice.n_opened == 2 and not voice.open_streams


async def test_only_the_line_that_is_asked_for_in_the_same_voice_is_taken(clock: Clock) -> None:
    async with Caller(clock, models(SlowVoice(), "what is the wifi password"), ANSWERS) as caller:
        await caller.say(1000)
        await caller.wait_quietly(300)
        preemptive = caller.session._call._replies.preemptive
        line = preemptive._line
        assert line is not None and line.playout.buffered_ms > 0
        plan = line.plan
        wanted, other = FixedAnswer(WIFI, "answer"), FixedAnswer("Two.", "answer")
        in_another = replace(plan, voice_options=VoiceOptions("b"))
        assert preemptive.take_line(other, plan) is None
        assert preemptive.take_line(wanted, in_another) is None
        assert preemptive.take_line(wanted, plan) is line and preemptive._line is None
        line.cancel()


async def test_a_line_that_takes_long_to_say_is_not_spoken_ahead(clock: Clock) -> None:
    text = "word " * (MOST_CHARACTERS // 5 + 1)
    agent = AgentConfig(answer=(ApprovedAnswer(("what is the wifi password",), text),))
    voice = SlowVoice(ms_per_char=2.0)
    caller, _ = await a_call(clock, voice, agent, "what is the wifi password")
    assert caller.of("voiceloop.timeline")[-1].event["timeline"]["held_ms"] == 0.0
