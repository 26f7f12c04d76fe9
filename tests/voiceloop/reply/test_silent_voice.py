"""What a caller hears where a reply has its words and its voice is lost, or stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeVoice,
    FakeVoiceStream,
    Fault,
    instant_backends,
)
from tests.voiceloop.call.test_turn_silence import counted
from voiceloop.agent import AgentConfig, Waiting
from voiceloop.backends import VoiceOptions
from voiceloop.errors import WorkerLost
from voiceloop.reply.voice import KeptLines
from voiceloop.telemetry.metrics import Metrics

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LINE, FALLBACK = "One moment, please.", "Pardon me?"
AGENT = AgentConfig(fallback=FALLBACK)
MUTE = AgentConfig(fallback=FALLBACK, waiting=Waiting(say=()))
DONE = "response.done"
NINE = "We open at nine on weekdays and at ten on Sundays."
OPEN_WAIT_S = 5.0  # as a worker's proxy waits for a process
# The least that a line waits, and the longest wait for the end of a turn with what follows it.
FROM_S, TO_S = 1.45, 2.7


class WorkerVoice(FakeVoice):
    """Its process can be lost, with all it has not said yet, and is back after so long."""

    def __init__(self, **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._is_back = asyncio.Event()
        self._is_back.set()

    async def open(self, stream_id: str, options: VoiceOptions) -> FakeVoiceStream:
        try:
            async with asyncio.timeout(OPEN_WAIT_S):
                await self._is_back.wait()
        except TimeoutError:
            raise WorkerLost("expected a worker, found it restarting") from None
        return await super().open(stream_id, options)

    def lose(self, back_after_s: float) -> None:
        self._is_back.clear()
        for stream in self.open_streams:
            stream._pipe.closed = True
            stream._pipe._queue.put_nowait(WorkerLost("expected the voice, found it lost"))
        asyncio.get_running_loop().call_later(back_after_s, self._is_back.set)


async def kept_lines() -> KeptLines:
    kept = KeptLines()
    for text in AGENT.kept_lines:
        await kept.keep(FakeVoice(), text, VoiceOptions())
    return kept


def holes_s(caller: Caller) -> list[float]:
    """Silences within what a client hears that plays each piece of sound as it comes."""
    ends_s, found = None, []
    for received in caller.of("response.output_audio.delta"):
        if ends_s is not None and received.at_s > ends_s + 0.001:
            found.append(received.at_s - ends_s)
        length_s = len(received.event["delta"]) * 3 / 4 / 2 / 24_000
        ends_s = max(ends_s or 0.0, received.at_s) + length_s
    return found


@pytest.mark.parametrize("p_end", [0.0, 0.95])  # asked for, and made ahead
async def test_a_reply_whose_voice_is_lost_follows_a_line(clock: Clock, p_end: float) -> None:
    metrics, voice = Metrics(), WorkerVoice()
    backends = instant_backends(
        voice=voice, language_model=FakeLanguageModel([NINE], p_end_of_turn=lambda text: p_end)
    )
    kept = await kept_lines()
    async with Caller(clock, backends, AGENT, kept_lines=kept, metrics=metrics) as caller:
        voice.lose(back_after_s=800e-3 + 4.0)
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE)
        assert FROM_S <= caller.first_audio_s() - ended_s <= TO_S
        assert caller.transcript() == f"{LINE} {NINE}"
        told = await caller.wait_for("voiceloop.timeline")
    assert caller.statuses() == ["completed"] and told.event["timeline"]["waiting_line"] == LINE
    assert caller.audio_ms() == pytest.approx(60 * len(f"{LINE}{NINE}".replace(" ", "")), abs=2)
    number, seconds = counted(metrics)
    assert number == 1 and seconds <= 2.0


async def test_a_voice_that_stands_still_is_spoken_for_by_a_line_then_by_the_fallback(
    clock: Clock,
) -> None:
    backends = instant_backends(voice=FakeVoice(faults=[Fault("feed", "hang")]))
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE, count=2, limit_ms=20_000)
        assert FROM_S <= caller.first_audio_s() - ended_s <= TO_S
        assert caller.transcript() == f"{LINE}{FALLBACK}"
    assert caller.statuses() == ["failed", "failed"]


async def test_an_agent_without_lines_says_the_fallback_for_a_lost_voice(clock: Clock) -> None:
    voice = WorkerVoice()
    backends = instant_backends(voice=voice)
    async with Caller(clock, backends, MUTE, kept_lines=await kept_lines()) as caller:
        voice.lose(back_after_s=60.0)
        await caller.say(800)
        ended_s = clock()
        await caller.listen_until(DONE, count=2)
        assert FROM_S <= caller.first_audio_s() - ended_s <= TO_S
        assert caller.transcript() == FALLBACK
    assert caller.statuses() == ["failed", "failed"]


async def test_words_and_voice_that_are_late_bring_one_line(clock: Clock) -> None:
    """Engine and voice are lost at once: the line for the model's words needs no voice either."""
    voice = WorkerVoice()
    backends = instant_backends(voice=voice, language_model=FakeLanguageModel([NINE], ttft_ms=3000))
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        voice.lose(back_after_s=4.5)
        asked_s = clock()
        caller.send("response.create")
        await caller.wait_for(DONE)
        assert 1.5 <= caller.first_audio_s() - asked_s <= 1.6
        assert caller.transcript() == f"{LINE} {NINE}" and caller.statuses() == ["completed"]


@pytest.mark.parametrize(("back_after_s", "heard"), [(0.3, ""), (4.0, LINE)])
@pytest.mark.parametrize("said_ms", [700, 1900])
@pytest.mark.parametrize("ms_per_char", [60.0, 57.0])  # whole chunks; and less is left over
async def test_a_reply_whose_voice_is_lost_in_its_middle_goes_on_at_the_next_word(
    clock: Clock, back_after_s: float, heard: str, said_ms: float, ms_per_char: float
) -> None:
    model, voice = FakeLanguageModel([NINE], ms_per_token=250.0), WorkerVoice()
    voice.ms_per_char = ms_per_char
    backends = instant_backends(voice=voice, language_model=model)
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        caller.send("response.create")
        await caller.wait_for("response.output_audio.delta")
        await caller.wait_quietly(said_ms)
        voice.lose(back_after_s)
        await caller.listen_until(DONE, limit_ms=20_000)
        await caller.wait_quietly(1000)
        assert caller.transcript() == NINE and caller.statuses() == ["completed"]
        line, reply = (len(text.replace(" ", "")) for text in (heard, NINE))
        assert caller.audio_ms() == pytest.approx(60 * line + ms_per_char * reply, abs=40)
        before_line, *_ = [*holes_s(caller), 0.0]
        assert before_line <= 1.6


async def test_a_reply_whose_voice_is_lost_again_ends_in_the_fallback(clock: Clock) -> None:
    faults = [Fault("feed"), Fault("feed", nth=1)]
    backends = instant_backends(voice=FakeVoice(faults=faults))
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        caller.send("response.create")
        await caller.wait_for(DONE, count=2)
        assert caller.transcript() == FALLBACK
    assert caller.statuses() == ["failed", "failed"] and not caller.backends.voice.open_streams


async def test_a_model_that_writes_slowly_is_no_silent_voice(clock: Clock) -> None:
    model = FakeLanguageModel(["Nine to five."], ttft_ms=1400, ms_per_token=900)
    backends = instant_backends(language_model=model)
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        caller.send("response.create")
        await caller.wait_for(DONE)
    assert caller.transcript() == "Nine to five."


async def test_nobody_is_asked_to_wait_while_they_speak(clock: Clock) -> None:
    """The reply is paused under their sound: what it still owes is not due."""
    voice, model = WorkerVoice(), FakeLanguageModel([NINE], ms_per_token=250.0)
    recognizer = FakeRecognizer(["mhm"])
    backends = instant_backends(voice=voice, recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AGENT, kept_lines=await kept_lines()) as caller:
        caller.send("response.create")
        await caller.wait_for("response.output_audio.delta")
        await caller.wait_quietly(300)
        voice.lose(back_after_s=60.0)
        await caller.wait_quietly(600)
        sent_ms = caller.audio_ms()
        await caller.say(3000)
        assert caller.audio_ms() - sent_ms <= 400.0
