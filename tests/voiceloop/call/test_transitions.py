"""Turn-taking as a whole: every pair answered, no state for ever, what is owed is given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.voiceloop.call.transitions import (
    BEGIN,
    END,
    PAGE,
    SETTINGS,
    STATES,
    TURN,
    activity,
    events,
    in_state,
    table,
    transitions,
)
from voiceloop.agent import BargeIn
from voiceloop.call import actions as do
from voiceloop.call import events as told
from voiceloop.call.actions import Step
from voiceloop.call.status import Agent, Caller, CallStatus, ReplyStatus
from voiceloop.call.turn_taking import TurnTaking
from voiceloop.errors import BackendError
from voiceloop.listening import events as heard
from voiceloop.realtime import commands as asked

SILENCE = heard.SpeechWindow(activity(96.0, 300.0))
SPEECH = heard.SpeechWindow(activity(1200.0))
END_OF_TURN = heard.EndOfTurn(0, 800.0, ())
# By which events each state of the caller is left, whatever the agent does: speech, silence, or
# time (a turn is ended by silence; a transcript comes or fails within its deadline).
EXITS = {
    Caller.OVERLAPPING: (SILENCE, SPEECH, END_OF_TURN),
    Caller.SPEAKING: (SILENCE,),
    Caller.PAUSED: (SPEECH, END_OF_TURN),
    Caller.TRANSCRIBING: (
        heard.TurnTranscribed(TURN),
        heard.TranscriptionFailed(TURN, BackendError("gone")),
    ),
}


def test_every_state_is_reached_and_every_pair_has_an_answer() -> None:
    found = list(transitions())
    assert {(one.caller, one.agent) for one in found} == set(STATES)
    assert {one.event for one in found} == set(events())
    assert {state[0] for state in STATES} == set(Caller)
    assert {state[1] for state in STATES} == set(Agent)


def test_the_page_shows_the_table_that_the_code_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.split(BEGIN)[1].split(END)[0].strip() == table(), "run transitions with --write"


@pytest.mark.parametrize("state", [s for s in STATES if s[0] in EXITS], ids=str)
def test_no_state_of_the_caller_is_for_ever(state: tuple[Caller, Agent]) -> None:
    for event in EXITS[state[0]]:
        turn_taking, status = in_state(*state)
        turn_taking.on(event, status)
        assert turn_taking.caller is not state[0], event


@pytest.mark.parametrize("event", [SILENCE, SPEECH, END_OF_TURN], ids=str)
def test_a_paused_agent_resumes_or_is_interrupted(event: told.CallEvent) -> None:
    turn_taking, status = in_state(Caller.OVERLAPPING, Agent.PAUSED)
    done = turn_taking.on(event, status)
    assert Step.RESUME in done or any(isinstance(one, do.InterruptReply) for one in done)


def test_a_noise_that_is_neither_words_nor_a_voice_is_talked_over() -> None:
    turn_taking, status = in_state(Caller.OVERLAPPING, Agent.PAUSED)
    done = turn_taking.on(heard.SpeechWindow(activity(2100.0, voice=0.6)), status)
    assert Step.RESUME in done and turn_taking.agent(status) is Agent.REPLYING


@pytest.mark.parametrize("words", [(), ("two", "lattes")])
def test_an_interrupted_reply_resumes_or_is_dropped_when_the_words_are_known(
    words: tuple[str, ...],
) -> None:
    turn_taking, status = in_state(Caller.PAUSED, Agent.INTERRUPTED)
    turn_taking.on(END_OF_TURN, status)
    done = turn_taking.on(heard.TurnTranscribed(replace(TURN, words=words)), status)
    answer: do.Action = do.AnswerTurn(TURN) if words else Step.RESUME_INTERRUPTED
    assert answer in done and (Step.DROP_INTERRUPTED in done) == bool(words)


def test_a_call_that_is_over_begins_no_reply() -> None:
    begun = do.AnswerTurn | do.BeginReply | do.SpeakFirst
    for state in STATES:
        turn_taking, status = in_state(*state)
        turn_taking.on(told.CallEnding(), status)
        done = turn_taking.on(heard.TurnTranscribed(TURN), status)
        assert not any(isinstance(one, begun) or one is Step.RESUME_INTERRUPTED for one in done)


class Call:
    """A call without sound: what turn-taking decides is all that happens to its replies."""

    def __init__(self) -> None:
        self.turn_taking = TurnTaking(BargeIn())
        self.status = CallStatus(SETTINGS)
        self.n_segments = 0
        self.pending: list[int] = []  # segments whose words are to come
        self.answered: list[str] = []

    def take(self, event: told.CallEvent) -> None:
        queue = [event]
        while queue:
            for action in self.turn_taking.on(queue.pop(0), self.status):
                queue += self.perform(action)

    def perform(self, action: do.Action) -> list[told.CallEvent]:
        match action:
            case do.AnswerTurn(turn=turn):
                self.begin(turn)
                self.answered.append(turn.text)
            case do.SpeakFirst() | Step.RESUME_INTERRUPTED:
                self.begin(None)
            case do.InterruptReply(may_resume=may_resume):
                self.status = CallStatus(SETTINGS, None, "resp" if may_resume else None)
            case Step.DROP_INTERRUPTED:
                self.status = replace(self.status, interrupted_id=None)
            case Step.END_SEGMENT:
                self.pending.append(self.n_segments)
                self.n_segments += 1
            case do.CommitSegment():
                self.pending.append(self.n_segments)
                self.n_segments += 1
                return [told.SegmentCommitted(self.pending[-1])]
        return []

    def begin(self, turn: heard.UserTurn | None) -> None:
        assert not self.status.is_answering, "two replies at once"
        reply = ReplyStatus("resp", is_audible=True, heard_ms=50.0, answers=turn, released_s=0.0)
        self.status = CallStatus(SETTINGS, reply, None, is_answering=True)

    def end_reply(self) -> None:
        self.status = CallStatus(SETTINGS, None, self.status.interrupted_id)
        self.take(told.ReplyEnded())

    def transcribe(self, words: tuple[str, ...]) -> None:
        if self.pending:
            turn = replace(TURN, segment=self.pending.pop(0), words=words)
            self.take(heard.TurnTranscribed(turn))

    def act(self, name: str) -> None:
        match name:
            case "onset":
                self.take(heard.SpeechStarted(activity(64.0)))
            case "speech":
                self.take(heard.SpeechWindow(activity(300.0)))
            case "long speech":
                self.take(SPEECH)
            case "silence":
                self.take(SILENCE)
            case "partial":
                self.take(heard.WordsHeard((), ("stop",), is_full=False))
            case "end":
                self.take(heard.EndOfTurn(self.n_segments, 800.0, ()))
            case "end with words":
                self.take(heard.EndOfTurn(self.n_segments, 800.0, ("stop",)))
            case "transcript":
                self.transcribe(())
            case "transcript with words":
                self.transcribe(("two", "lattes"))
            case "reply ends":
                self.end_reply()
            case "commit":
                self.take(asked.CommitAudio("item"))
            case "clear":
                self.take(asked.ClearAudio())
            case "idle":
                self.take(told.CallerIdle(0.0))


ACTS = ["onset", "speech", "long speech", "silence", "partial", "end", "end with words"]
ACTS += ["transcript", "transcript with words", "reply ends", "commit", "clear", "idle"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(ACTS), max_size=25))
def test_what_is_owed_is_given_whatever_came_before(acts: list[str]) -> None:
    call = Call()
    for name in acts:
        call.act(name)
    call.act("end")
    while call.pending:
        call.act("transcript")
    for _ in range(3):  # the reply, what was owed behind it, and one that resumes
        call.end_reply()
    assert call.turn_taking.caller is Caller.SILENT
    assert call.turn_taking.is_idle(call.status)
    n_answered = len(call.answered)
    for name in ("onset", "speech", "end with words", "transcript with words"):
        call.act(name)
    assert len(call.answered) == n_answered + 1
