"""What a caller hears whose words nobody has yet: a recognizer that is busy, or started anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    Fault,
    instant_backends,
)
from tests.voiceloop.call.test_turn_silence import counted
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.backends import VoiceOptions
from voiceloop.config import Ahead, Config
from voiceloop.listening.recognition import FINAL_DEADLINE_S
from voiceloop.reply.voice import KeptLines
from voiceloop.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LINE = "One moment, please."
FALLBACK = "Pardon me?"
AGENT = AgentConfig(fallback=FALLBACK)
DONE = "response.done"
# The least that a line waits, and the longest wait for the end of a turn with what follows it.
FROM_S, TO_S = 1.45, 2.7


async def kept_lines() -> KeptLines:
    kept = KeptLines()
    for text in AGENT.kept_lines:
        await kept.keep(FakeVoice(), text, VoiceOptions())
    return kept


def silent_s(caller: Caller, since_s: float) -> float:
    return caller.first_audio_s() - since_s


async def test_the_answer_to_words_that_come_late_follows_a_line(clock: Clock) -> None:
    metrics, model = Metrics(), FakeLanguageModel(["We open at nine."])
    recognizer = FakeRecognizer(["when do you open"], partial_delay_ms=4000)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AGENT, metrics=metrics) as caller:
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE, count=2)
        assert FROM_S <= silent_s(caller, ended_s) <= TO_S
        assert caller.transcript() == f"{LINE}We open at nine."
        assert caller.statuses() == ["completed", "completed"]
    [prompt] = model.prompts
    assert LINE not in str(prompt)  # it says nothing of what was asked
    number, seconds = counted(metrics)
    assert number == 1 and seconds <= TO_S  # the silence ended with the line


async def test_a_line_needs_no_voice_where_its_sound_is_kept(clock: Clock) -> None:
    """Recognizer and voice are one process in the embedded preset: both are lost at once."""
    backends = instant_backends(
        recognizer=FakeRecognizer(["when"], faults=[Fault("flush", "hang")]),
        voice=FakeVoice(faults=[Fault("open", "hang", nth=n) for n in range(9)]),
    )
    kept = await kept_lines()
    async with Caller(clock, backends, AGENT, kept_lines=kept) as caller:
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE, count=2)
        assert FROM_S <= silent_s(caller, ended_s) <= TO_S
        [line, failed] = caller.of(DONE)
        assert line.event["response"]["status"] == "completed"
        assert failed.event["response"]["status"] == "failed"
        assert failed.at_s - ended_s <= FINAL_DEADLINE_S + TO_S + 2.0  # the fallback's own sound
        assert caller.transcript() == f"{LINE}{FALLBACK}"


async def test_words_that_fail_under_the_line_are_told_of_behind_it(clock: Clock) -> None:
    faults = [Fault("finalize", "fail", nth=n) for n in range(9)]
    recognizer = FakeRecognizer(["when"], partial_delay_ms=2600, faults=faults)
    long_line = "One moment please, while I have a look at all that we have here today."
    agent = AgentConfig(fallback=FALLBACK, waiting=Waiting(say=(long_line,)))
    async with Caller(clock, instant_backends(recognizer=recognizer), agent) as caller:
        await caller.say(800)
        await caller.listen_until(DONE, count=2, limit_ms=20_000)
        line, fallback = caller.of("response.created")
        assert caller.audio_ms(line.event["response"]["id"]) > 2000.0  # the words failed under it
        assert fallback.at_s >= caller.of(DONE)[0].at_s
        assert caller.transcript() == f"{long_line}{FALLBACK}"
        assert caller.statuses() == ["completed", "failed"]


@pytest.mark.parametrize("partial_delay_ms", [2100, 4000])  # under the line, and after it
async def test_who_was_asked_to_wait_is_asked_again_where_there_were_no_words(
    clock: Clock, partial_delay_ms: float
) -> None:
    recognizer = FakeRecognizer([""], partial_delay_ms=partial_delay_ms)
    async with Caller(clock, instant_backends(recognizer=recognizer), AGENT) as caller:
        await caller.say(800)
        await caller.listen_until(DONE, count=2)
        line, again = caller.of("response.created")
        assert again.at_s >= caller.of(DONE)[0].at_s
        assert caller.transcript() == f"{LINE}{FALLBACK}"
        assert caller.statuses() == ["completed", "completed"]


async def test_words_that_come_as_the_line_fades_are_answered_as_if_it_were_not_said(
    clock: Clock,
) -> None:
    """Its response has ended by then, its sound has not."""
    model = FakeLanguageModel(["We open at nine."])
    recognizer = FakeRecognizer(["when do you open"], partial_delay_ms=2100)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AGENT, Config(pacing_lead_ms=1000)) as caller:
        audio = {"input": {"transcription": {"model": "any"}}}
        caller.send("session.update", session={"audio": audio})
        await caller.wait_for("session.updated")
        await caller.say(800)
        await caller.listen_until(DONE)
        line_ended_s = caller.of(DONE)[0].at_s
        await caller.listen_until("conversation.item.input_audio_transcription.completed")
        assert 0.0 < clock() - line_ended_s < 1.0
        await caller.listen_until(DONE, count=2)
    [prompt] = model.prompts
    assert LINE not in str(prompt)


async def test_a_line_that_is_spoken_over_is_nothing_that_the_next_turn_follows(
    clock: Clock,
) -> None:
    model = FakeLanguageModel(["We open at nine."])
    recognizer = FakeRecognizer(["when do you open"], partial_delay_ms=5000)
    agent = AgentConfig(waiting=Waiting(say=("One moment please, while I look that up for you.",)))
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, agent) as caller:
        await caller.say(800)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(800)
        await caller.say(2500)
        assert caller.statuses() == ["cancelled"]
        await caller.wait_quietly(100)
    assert model.branches and not any("moment" in str(branch.messages) for branch in model.branches)


async def test_who_reads_the_answer_is_not_asked_to_wait(clock: Clock) -> None:
    recognizer = FakeRecognizer(["when do you open"], partial_delay_ms=4000)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(["At nine."])
    )
    async with Caller(clock, backends, AGENT) as caller:
        caller.send("session.update", session={"output_modalities": ["text"]})
        await caller.wait_for("session.updated")
        await caller.say(800)
        await caller.listen_until(DONE)
        await caller.wait_quietly(4000)
        assert len(caller.of("response.created")) == 1


async def test_a_caller_who_speaks_again_is_not_spoken_over(clock: Clock) -> None:
    recognizer = FakeRecognizer(["when do you open"], partial_delay_ms=6000)
    async with Caller(clock, instant_backends(recognizer=recognizer), AGENT) as caller:
        await caller.say(800)
        await caller.wait_for("input_audio_buffer.speech_stopped")
        await caller.say(3000)
        assert not caller.of("response.created")


async def test_an_agent_without_lines_waits_in_silence(clock: Clock) -> None:
    recognizer = FakeRecognizer(["when"], partial_delay_ms=4000)
    mute = AgentConfig(fallback=FALLBACK, waiting=Waiting(say=()))
    model = FakeLanguageModel(["Nine."])
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, mute) as caller:
        await caller.say(800)
        await caller.listen_until(DONE)
        assert caller.transcript() == "Nine."


async def test_a_model_that_stands_still_is_spoken_for_since_the_callers_end(clock: Clock) -> None:
    """A turn whose end was decided late owes its line no later."""
    model = FakeLanguageModel(faults=[Fault("commit", "hang", nth=n) for n in range(9)])
    backends = instant_backends(
        recognizer=FakeRecognizer(["when do you open"]), language_model=model
    )
    config = Config(anticipation=Ahead(("speculative_reply",)))  # a reply made ahead would be heard
    async with Caller(clock, backends, AGENT, config) as caller:
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE)
        assert FROM_S <= silent_s(caller, ended_s) <= FROM_S + 0.1
        assert caller.of(DONE)[0].at_s - ended_s <= 5.0 + 2.0  # the fallback's own sound
        assert caller.transcript() == f"{LINE} {FALLBACK}"
