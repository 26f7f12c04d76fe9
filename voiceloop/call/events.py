"""Events for turn-taking beside those of listening and of the client.

Owns these events of the call itself, and the union of all that turn-taking answers.
"""

from __future__ import annotations

import msgspec

from voiceloop.listening.events import ListenEvent, TurnTranscribed, UserTurn
from voiceloop.realtime.commands import Command
from voiceloop.tools.call_tools import CallAct


class SegmentCommitted(msgspec.Struct, frozen=True):
    """The client ended the turn: the words of this segment are still to come."""

    segment: int


class ReplyAudible(msgspec.Struct, frozen=True):
    """The first sound of the agent's reply has been sent."""


class StartedEarly(msgspec.Struct, frozen=True):
    """`StartEarly` is done: the held reply is heard, and may be taken back."""


class ReplyEnded(msgspec.Struct, frozen=True):
    """A reply is over: said, failed, cancelled.

    had_floor: it was the agent's in the conversation, or interrupted and to resume. line_said: of a
    line that was said until an answer is there, whether to its end; None of any other. act: what
    it asked to be done to the call, now that it has been heard.
    """

    had_floor: bool = True
    line_said: bool | None = None
    act: CallAct | None = None


class KeysPressed(msgspec.Struct, frozen=True):
    """The caller has pressed the first key of a turn, at this point of the audio clock."""

    onset_ms: float


class KeysEntered(msgspec.Struct, frozen=True):
    """The keys since `KeysPressed` are a whole turn; its words stand in it."""

    turn: UserTurn


class TurnPassed(msgspec.Struct, frozen=True):
    """The agent's class has heard of a turn that is over: its words are answered now."""

    words: TurnTranscribed


class GreetingDue(msgspec.Struct, frozen=True):
    """A silence in which the agent begins by itself in these words: a greeting, or a question
    whether anybody is there.
    """

    text: str


class CallerIdle(msgspec.Struct, frozen=True):
    """A silence since this point of the audio clock, for as long as the settings allow."""

    since_ms: float


class AnswerOwed(msgspec.Struct, frozen=True):
    """An answer that the agent owes: to a result that its reply had to do without, to calls that
    nobody answered, or to what the caller said in a call that broke off elsewhere.
    """


class CallEnding(msgspec.Struct, frozen=True):
    """The session is over: nothing is answered any more."""


CallEvent = (
    ListenEvent
    | Command
    | SegmentCommitted
    | ReplyAudible
    | StartedEarly
    | ReplyEnded
    | KeysPressed
    | KeysEntered
    | GreetingDue
    | TurnPassed
    | CallerIdle
    | AnswerOwed
    | CallEnding
)
