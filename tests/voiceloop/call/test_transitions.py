"""Turn-taking as a whole: every pair answered, no state for ever, what is owed is given."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import each_row
from tests.voiceloop.call.transitions import (
    HEAD,
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
from voiceloop.call.turn_taking import Agent, Caller, CallStatus, ReplyStatus, TurnTaking
from voiceloop.errors import BackendError
from voiceloop.listening import events as heard
from voiceloop.realtime import commands as asked
from voiceloop.realtime.settings import SemanticVad, SessionSettings

OWN_EVENTS = {
    "SegmentCommitted",
    "ReplyAudible",
    "StartedEarly",
    "ReplyEnded",
    "GreetingDue",
    "KeysPressed",
    "KeysEntered",
    "CallerIdle",
    "AnswerOwed",
    "CallEnding",
}
# The session does these itself.
NOT_FOR_TURN_TAKING = {
    "AppendAudio", "AnswerConfirmation", "CommitAudio", "ItemCreated", "ItemDeleted", "PressKey",
    "ResumeCall", "TruncateItem",
}  # fmt: skip
SILENCE = heard.SpeechWindow(activity(96.0, 300.0))
SPEECH = heard.SpeechWindow(activity(1200.0))
END_OF_TURN = heard.EndOfTurn(0, 800.0, ())
# By which events each state of the caller is left, whatever the agent does: speech, silence, or
# time (a turn is ended by silence; a transcript comes or fails within its deadline).
EXITS = {
    Caller.OVERLAPPING: (SILENCE, SPEECH, END_OF_TURN),
    Caller.SPEAKING: (SILENCE,),
    Caller.PAUSED: (SPEECH, END_OF_TURN),
    Caller.KEYING: (told.KeysEntered(replace(TURN, segment=-1)),),
    Caller.TRANSCRIBING: (
        heard.TurnTranscribed(TURN),
        heard.TranscriptionFailed(TURN, BackendError("gone")),
    ),
}


def test_every_event_is_tried_and_every_action_occurs() -> None:
    """In every state that the call can be in; `in_state` holds each to be what it is called."""
    kinds = {type(event).__name__ for forms in events().values() for _, event in forms}
    spoken = {kind.__name__ for kind in heard.ListenEvent.__subclasses__()}
    commands = {kind.__name__ for kind in get_args(asked.Command)}
    assert kinds >= spoken and kinds - spoken - OWN_EVENTS == commands - NOT_FOR_TURN_TAKING
    done = {name for one in transitions() for name in one.actions}
    need_two_events = {Step.ASK_AGAIN.value, Step.ASK_BACK.value}
    assert {step.value for step in Step} - done == need_two_events
    orders = {order.__name__ for order in do.Order.__subclasses__()}
    assert {name.split(" (")[0] for name in done} >= orders - {"CountBargeIn", "WatchIdleness"}
    assert {"count a duck", "count a hold", "count a stop", "count a go_on", "idle"} <= done


def test_the_page_shows_the_table_that_the_code_makes() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == f"{HEAD}\n{table()}\n", "run transitions with --write"


def test_a_turn_of_the_longest_kind_is_answered_or_asked_about() -> None:
    """Music has no words, and a television has some; neither makes a call that says nothing."""
    for turn, wanted in ((replace(TURN, words=()), Step.ASK_AGAIN), (TURN, do.AnswerTurn(TURN))):
        turn_taking, status = in_state(Caller.SPEAKING, Agent.IDLE)
        ended = turn_taking.on(heard.EndOfTurn(0, 60_000.0, (), is_overlong=True), status)
        assert Step.END_SEGMENT in ended
        found = turn_taking.on(heard.TurnTranscribed(turn), status)
        assert wanted in found
        assert do.WatchIdleness(is_idle=True) not in found


def test_nobody_is_asked_again_where_the_client_answers() -> None:
    quiet = SessionSettings(turn_detection=SemanticVad(create_response=False))
    turn_taking, status = in_state(Caller.SPEAKING, Agent.IDLE)
    status = replace(status, settings=quiet)
    turn_taking.on(heard.EndOfTurn(0, 60_000.0, (), is_overlong=True), status)
    found = turn_taking.on(heard.TurnTranscribed(replace(TURN, words=())), status)
    assert Step.ASK_AGAIN not in found and Step.DROP_USER_ITEM in found


@each_row("state", [s for s in STATES if s[0] in EXITS])
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
    assert Step.RESUME in done and turn_taking.agent is Agent.REPLYING


@pytest.mark.parametrize("words", [(), ("two", "lattes")])
def test_an_interrupted_reply_resumes_or_is_dropped_when_the_words_are_known(
    words: tuple[str, ...],
) -> None:
    turn_taking, status = in_state(Caller.PAUSED, Agent.INTERRUPTED)
    turn_taking.on(END_OF_TURN, status)
    done = turn_taking.on(heard.TurnTranscribed(replace(TURN, words=words)), status)
    answer: do.Action = do.AnswerTurn(TURN) if words else Step.RESUME_INTERRUPTED
    assert answer in done and (Step.DROP_INTERRUPTED in done) == bool(words)


def test_a_call_that_is_over_answers_nothing() -> None:
    for state in STATES:
        for _, event in (form for forms in events().values() for form in forms):
            turn_taking, status = in_state(*state)
            turn_taking.on(told.CallEnding(), status)
            assert turn_taking.on(event, status) == []


@pytest.mark.parametrize(
    "goes_on",
    [
        heard.SpeechWindow(activity(160.0)),
        heard.WordsHeard(("please",), (), False),
        heard.EndOfTurn(1, 800.0, ("please",)),
    ],
)
def test_a_reply_is_taken_back_where_the_caller_had_not_finished(
    goes_on: heard.ListenEvent,
) -> None:
    turn_taking, _ = in_state(Caller.SILENT, Agent.IDLE)
    fresh = ReplyStatus("resp", is_audible=True, heard_ms=50.0, answers=TURN, released_s=100.0)
    status = CallStatus(SETTINGS, fresh, is_answering=True)
    turn_taking.agent = Agent.REPLYING
    turn_taking.on(heard.SpeechStarted(activity(64.0)), status)
    done = turn_taking.on(goes_on, status)
    assert do.InterruptReply(None, may_resume=False, onset_ms=0.0) in done


def test_words_that_come_late_reopen_the_turn_of_a_caller_who_speaks_again() -> None:
    turn_taking, status = in_state(Caller.TRANSCRIBING, Agent.IDLE)
    turn_taking.on(heard.SpeechStarted(activity(64.0)), status)
    done = turn_taking.on(heard.TurnTranscribed(TURN), status)
    assert done[:2] == [do.CommitUserItem(0), do.OpenUserTurn(0.0)]
    assert not any(isinstance(one, do.AnswerTurn) for one in done)


class Call:
    """A call without sound: what turn-taking decides is all that happens to its replies.

    owed: the turn that is to be answered next, as the rule says it: the last one whose words came,
    or the one whose reply nobody has heard.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.turn_taking = TurnTaking(BargeIn())
        self.settings = settings
        self.status = CallStatus(settings)
        self.n_segments = 0
        self.said_words = False  # in the segment that ends: its transcript has some then, too
        self.pending: list[tuple[int, bool, bool]] = []  # segment, to be answered, had words
        self.owed: heard.UserTurn | None = None
        self.n_answered = 0

    @property
    def is_early(self) -> bool:
        return self.turn_taking.agent is Agent.EARLY

    def take(self, event: told.CallEvent) -> None:
        queue = [event]
        while queue:
            for action in self.turn_taking.on(queue.pop(0), self.status):
                queue += self.perform(action)

    def perform(self, action: do.Action) -> list[told.CallEvent]:
        match action:
            case do.AnswerTurn(turn=turn):
                assert turn is self.owed
                self.owed, self.n_answered = None, self.n_answered + 1
                self.begin(turn)
            case do.SpeakFirst() | Step.RESUME_INTERRUPTED | Step.ASK_AGAIN:
                self.begin(None)
            case do.FailReply(is_told=True):
                self.begin(None)
            case do.StartEarly():
                assert not self.status.is_answering, "two replies at once"
                return [told.StartedEarly()]
            case do.InterruptReply(heard_ms=heard_ms, may_resume=may_resume):
                self.interrupt(heard_ms, may_resume=may_resume)
            case Step.END_SEGMENT:
                self.close_segment(is_answered=True)
                if self.is_early:  # its words are known: they come at once
                    self.owed = replace(TURN, segment=self.pending.pop()[0])
                    return [heard.TurnTranscribed(self.owed)]
        return []

    def close_segment(self, *, is_answered: bool) -> int:
        self.pending.append((self.n_segments, is_answered, self.said_words))
        self.n_segments += 1
        return self.n_segments - 1

    def begin(self, turn: heard.UserTurn | None) -> None:
        assert not self.status.is_answering, "two replies at once"
        reply = ReplyStatus("resp", is_audible=True, answers=turn, released_s=100.0)
        self.status = CallStatus(self.settings, reply, is_answering=True)

    def hear_reply(self) -> None:
        if (reply := self.status.reply) is not None:
            reply = replace(reply, heard_ms=900.0, item_heard_ms=900.0, released_s=0.0)
            self.status = replace(self.status, reply=reply)

    def interrupt(self, heard_ms: float | None, *, may_resume: bool) -> None:
        reply = self.status.reply
        assert reply is not None
        if self.owed is None and (heard_ms is None or reply.heard_ms == 0.0):
            self.owed = reply.answers
        self.status = CallStatus(self.settings)

    def end_reply(self) -> None:
        had_floor = self.status.reply is not None
        self.status = CallStatus(self.settings)
        self.take(told.ReplyEnded(had_floor))

    def transcribe(self, words: tuple[str, ...]) -> None:
        if self.pending:
            segment, is_answered, had_words = self.pending.pop(0)
            words = words or (TURN.words if had_words else ())
            turn = replace(TURN, segment=segment, words=words)
            if words and is_answered:
                self.owed = turn
            self.take(heard.TurnTranscribed(turn))

    def fail_transcript(self) -> None:
        if self.pending:
            turn = replace(TURN, segment=self.pending.pop(0)[0])
            self.take(heard.TranscriptionFailed(turn, BackendError("gone")))

    def settle(self) -> None:
        """As the session does before it obeys the client, and the listener in a while."""
        if self.is_early:
            self.take(heard.EndOfTurn(self.n_segments, 800.0, TURN.words))

    def act(self, name: str) -> None:
        if name in ("commit", "clear", "cancel"):
            self.settle()
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
            case "end is likely":
                self.status = replace(self.status, held_words=TURN.words)
                self.take(heard.EndIsLikely(self.n_segments, 800.0, TURN.words, 50.0))
            case "end" | "end with words" if self.is_early:
                self.settle()
            case "end" | "end with words":
                self.said_words = name == "end with words"
                words = ("stop",) if self.said_words else ()
                self.take(heard.EndOfTurn(self.n_segments, 800.0, words))
            case "transcript":
                self.transcribe(())
            case "transcript with words":
                self.transcribe(("two", "lattes"))
            case "no transcript":
                self.fail_transcript()
            case "reply is heard":
                self.hear_reply()
            case "reply ends":
                self.end_reply()
            case "commit":
                self.take(told.SegmentCommitted(self.close_segment(is_answered=False)))
            case "clear":
                self.take(asked.ClearAudio())
            case "cancel":
                self.take(asked.CancelResponse(None))
            case "idle":
                self.take(told.CallerIdle(0.0))


ACTS = ["onset", "speech", "long speech", "silence", "partial", "end", "end with words"]
ACTS += ["transcript", "transcript with words", "no transcript", "reply is heard", "reply ends"]
ACTS += ["commit", "clear", "cancel", "idle", "end is likely"]


@settings(max_examples=400)
@given(st.lists(st.sampled_from(ACTS), max_size=30), st.booleans())
def test_what_is_owed_is_given_whatever_came_before(acts: list[str], interrupts: bool) -> None:
    detection = SemanticVad(interrupt_response=interrupts)
    call = Call(SessionSettings(turn_detection=detection))
    for name in acts:
        call.act(name)
    call.act("end")
    while call.pending:
        call.act("transcript")
    for _ in range(3):  # the reply, what was owed behind it, and one that resumes
        call.end_reply()
    assert call.owed is None
    assert call.turn_taking.caller is Caller.SILENT
    assert call.turn_taking.is_idle
    n_answered = call.n_answered
    for name in ("onset", "speech", "end with words", "transcript with words"):
        call.act(name)
    assert call.n_answered == n_answered + 1
