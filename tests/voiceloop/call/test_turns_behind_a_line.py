"""Who speaks on while the words of the turn before are still to come: over a line, or behind it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.callers import Caller
from tests.fakes import (
    FakeLanguageModel,
    FakeRecognizer,
    FakeRecognizerStream,
    FakeVoice,
    instant_backends,
)
from tests.voiceloop.call.transitions import TURN, in_state
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage, RecognizerOptions
from voiceloop.call import actions as do
from voiceloop.call import events as told
from voiceloop.call.actions import Step
from voiceloop.call.turn_taking import Agent, ReplyStatus
from voiceloop.call.turn_taking import Caller as CallerState
from voiceloop.errors import WorkerLost
from voiceloop.listening import events as heard
from voiceloop.listening.endpointing import Endpointing

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]
LINE = "One moment, please."
AGENT = AgentConfig(fallback="Pardon me?")
AUDIO, DONE = "response.output_audio.delta", "response.done"
ORDER, MORE, LAST = "a large cappuccino", "and a muffin please", "that is all"


class RestartedRecognizer(FakeRecognizer):
    """Its worker can be lost; streams are opened once it is back."""

    def __init__(self, transcripts: Sequence[str]) -> None:
        super().__init__(transcripts, ms_per_word=100)
        self._is_back = asyncio.Event()
        self._is_back.set()

    def lose(self, away_s: float) -> None:
        self._is_back.clear()
        for stream in self.open_streams:
            stream._pipe.put(WorkerLost("expected a worker, found a scripted end"))
        asyncio.get_running_loop().call_later(away_s, self._is_back.set)

    async def open(self, stream_id: str, options: RecognizerOptions) -> FakeRecognizerStream:
        await self._is_back.wait()
        return await super().open(stream_id, options)


def said_back(messages: tuple[ChatMessage, ...]) -> str:
    return f"You said {messages[-1].content}."


def response_ids(caller: Caller, text: str) -> list[str]:
    """Of the responses in which this is said."""
    ids = [r.event["response"]["id"] for r in caller.of("response.created")]
    return [response_id for response_id in ids if text in caller.transcript(response_id)]


async def until_the_line(caller: Caller, recognizer: RestartedRecognizer, away_s: float) -> None:
    """The worker is lost as the caller ends, and a line is heard."""
    await caller.say(1000)
    recognizer.lose(away_s)
    await caller.say(200)
    await caller.listen_until(AUDIO)


# Seconds: how long the recognizer is away, and from the line's first sound to the caller's next.
@pytest.mark.parametrize(("ms", "behind_s", "away_s"), [
    (400, 0.3, 1.8), (1400, 0.7, 1.8), (400, 1.2, 1.8), (1400, 2.4, 1.8),
    (1400, 0.3, 3.4), (400, 0.7, 3.4), (1400, 1.2, 3.4), (400, 2.4, 3.4),
    (400, 0.3, 6.0), (1400, 0.7, 6.0), (400, 1.2, 6.0), (1400, 2.4, 6.0),
])  # fmt: skip
async def test_what_is_said_behind_a_line_is_answered_with_the_turn_that_it_bridged(
    clock: Clock, ms: float, behind_s: float, away_s: float
) -> None:
    recognizer = RestartedRecognizer([ORDER, MORE, LAST])
    model = FakeLanguageModel(said_back, ttft_ms=150)
    backends = instant_backends(
        recognizer=recognizer, language_model=model, voice=FakeVoice(first_audio_ms=150)
    )
    async with Caller(clock, backends, AGENT) as caller:
        lost_s = clock()
        await until_the_line(caller, recognizer, away_s)
        await caller.wait_quietly(1000 * behind_s)
        await caller.say(ms)
        ended_s = max(clock(), lost_s + 1.0 + away_s)
        await caller.wait_quietly(8000)
        assert ORDER in str(model.prompts[-1]) and MORE in str(model.prompts[-1])
        assert caller.first_audio_s(response_ids(caller, MORE)[-1]) - ended_s <= 5.0
        await caller.say(1000)
        await caller.listen_until(DONE, count=len(caller.of(DONE)) + 1)
        assert response_ids(caller, LAST)


@pytest.mark.parametrize("first_audio_ms", [900, 2500])
async def test_an_answer_on_its_way_is_heard_behind_the_word_that_was_said_meanwhile(
    clock: Clock, first_audio_ms: float
) -> None:
    """A "yes" to "one moment" is no turn, and takes no answer away."""
    recognizer = RestartedRecognizer([ORDER, "yes"])
    voice = FakeVoice(first_audio_ms=first_audio_ms)
    backends = instant_backends(
        recognizer=recognizer, language_model=FakeLanguageModel(said_back), voice=voice
    )
    async with Caller(clock, backends, AGENT) as caller:
        await until_the_line(caller, recognizer, 6.0 if first_audio_ms > 1000 else 4.0)
        await caller.listen_until("response.created", count=2)
        await caller.wait_quietly(500)  # longer than an answer may be taken back
        await caller.say(300)
        ended_s = clock()
        await caller.listen_until(DONE, count=2)
        assert caller.statuses() == ["completed", "completed"]
        answer = response_ids(caller, f"You said {ORDER}.")
        assert caller.first_audio_s(answer[0]) - ended_s <= first_audio_ms / 1000


async def test_an_early_start_leaves_out_no_words_that_came_while_the_caller_went_on(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpointing, "unsure_ms", lambda self, end: 100.0)  # none is sure
    recognizer = RestartedRecognizer([ORDER, MORE])
    model = FakeLanguageModel(said_back, p_end_of_turn=lambda text: 0.5)
    backends = instant_backends(recognizer=recognizer, language_model=model)
    async with Caller(clock, backends, AGENT) as caller:
        await until_the_line(caller, recognizer, 4.6)
        await caller.wait_quietly(1300)
        await caller.say(2000)  # the recognizer is back meanwhile
        await caller.listen_until(DONE, count=2)
        assert caller.transcript() == f"{LINE}You said {ORDER} {MORE}."


def test_a_line_yields_to_a_voice_before_any_word_of_it_is_known() -> None:
    turn_taking, status = in_state(CallerState.TRANSCRIBING, Agent.IDLE)
    line = ReplyStatus("line", is_audible=True, heard_ms=500.0, released_s=0.0, asks_to_wait=True)
    status = replace(status, reply=line, is_answering=True)
    voice = heard.Activity(0.0, 64.0, 0.0, 100.0)
    turn_taking.on(heard.SpeechStarted(voice), status)
    assert turn_taking.caller is CallerState.OVERLAPPING
    turn_taking.on(heard.SpeechWindow(replace(voice, speech_ms=160.0)), status)
    assert turn_taking.caller is CallerState.SPEAKING


def test_words_that_are_owed_an_answer_are_not_asked_for_again() -> None:
    """A caller was asked to wait twice, and the second turn held no words."""
    turn_taking, status = in_state(CallerState.TRANSCRIBING, Agent.IDLE)
    second = replace(TURN, segment=1, words=())
    voice = heard.Activity(0.0, 400.0, 0.0, 100.0)
    turn_taking.on(heard.SpeechStarted(voice), status)
    turn_taking.on(heard.EndOfTurn(1, 800.0, ()), status)
    assert do.AskToWait(second) in turn_taking.on(heard.WordsLate(second), status)
    turn_taking.on(told.ReplyEnded(), status)
    turn_taking.on(heard.TurnTranscribed(TURN), status)
    done = turn_taking.on(heard.TurnTranscribed(second), status)
    assert do.AnswerTurn(TURN) in done and Step.ASK_AGAIN not in done
