"""The decisions of turn-taking: the call does each at once, in order.

Owns these messages. They name what is to be done and nothing of how; immutable.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from voiceloop.call.barge_in import Verdict
from voiceloop.errors import BackendError
from voiceloop.listening.events import PauseWeighed, UserTurn
from voiceloop.realtime.response import ResponseHandle
from voiceloop.tools.call_tools import CallAct


class Step(Enum):
    """The actions that need no more to be said about."""

    # the caller's turn
    DROP_USER_ITEM = "drop the user item"  # there were no words
    END_SEGMENT = "end the segment"  # it was a turn: its words follow as `TurnTranscribed`
    DISCARD_SEGMENT = "discard the segment"  # a backchannel, noise, or what the client cleared
    IGNORE_TONE = "ignore the tone"  # of a key: the open segment, and what goes on of it
    REQUEST_WORDS = "request the words"  # the fullest hypothesis of the open segment, now
    # what is prepared while the caller speaks
    PREFILL = "prefill"  # the conversation so far into the language model's cache
    REST_PREEMPTIVE = "rest the preemptive reply"  # the caller goes on: keep it, add nothing
    DROP_PREEMPTIVE = "drop the preemptive reply"  # another turn of the caller begins
    ABANDON_PREPARATION = "abandon the preparation"  # no answer to the staged words is due
    LEAVE_UNANSWERED = "leave the turn unanswered"  # the agent was asked to wait
    ACKNOWLEDGE = "acknowledge a group"  # softly, while the caller has the floor
    ASK_BACK = "ask back"  # whether a caller is still there who has asked to wait
    ASK_AGAIN = "ask again"  # a turn of the longest kind held no words: say the fallback
    # the sound of the agent's reply
    REDUCE_LEAD = "reduce the lead"  # send less far ahead: somebody may be about to speak
    DUCK = "duck"  # play more quietly
    PAUSE = "pause"  # fade out and send nothing; no sample is lost
    RESUME = "resume"  # undo the three above
    # a reply that was interrupted
    DROP_INTERRUPTED = "drop the interrupted reply"  # the caller spoke to the agent
    RESUME_INTERRUPTED = "resume the interrupted reply"  # in a new response, after what was heard


class Order(msgspec.Struct, frozen=True):
    """An action with particulars."""


class OpenUserTurn(Order, frozen=True):
    """Tell the client that the caller speaks, since this point of the audio clock.

    Where the settings allow it this closes the response that is open.
    """

    onset_ms: float


class CloseUserTurn(Order, frozen=True):
    """Tell the client that the caller has stopped, at this point of the audio clock."""

    end_ms: float


class CommitUserItem(Order, frozen=True):
    """Put the caller's item into the conversation; the words of this segment are to be its.

    stays_open: the caller may go on, with words that are the item's too.
    """

    segment: int
    stays_open: bool = False


class SendPartial(Order, frozen=True):
    """The hypothesis of the open turn."""

    stable: tuple[str, ...]
    unstable: tuple[str, ...]


class SendTranscript(Order, frozen=True):
    """The final words of a committed item; or, with an error, that there will be none."""

    turn: UserTurn
    error: BackendError | None = None


class StageWords(Order, frozen=True):
    """Let the language model read the words that will stay (all of them where `is_full`)."""

    stable: tuple[str, ...]
    unstable: tuple[str, ...]
    is_full: bool


class ConsiderPreemptiveReply(Order, frozen=True):
    """Begin the reply ahead of the end of the turn, if it pays."""

    pause: PauseWeighed


class InterruptReply(Order, frozen=True):
    """End the reply's response: the caller has the floor.

    heard_ms: how much of its item was heard; None: it counts as never said, for the caller had not
    finished. may_resume: the sound may turn out to be nobody's (a false interruption). onset_ms:
    when the sound began, on the audio clock.
    """

    heard_ms: float | None
    may_resume: bool
    onset_ms: float


class StartEarly(Order, frozen=True):
    """Let the held reply be heard, though it may be taken back.

    unsure_ms: so much more silence would end the turn for sure.
    """

    unsure_ms: float


class TakeBack(Order, frozen=True):
    """A reply that has started early counts as never said, and is held again.

    is_cut: the caller goes on; else the words that it answers have changed.
    """

    is_cut: bool


class AnswerTurn(Order, frozen=True):
    """Reply to this turn of the caller; with the preemptive reply where it fits."""

    turn: UserTurn


class AskToWait(Order, frozen=True):
    """Say a line: the words of this turn, which is to be answered, are late."""

    turn: UserTurn


class BeginReply(Order, frozen=True):
    """Reply in this response, which the client has asked for."""

    response: ResponseHandle


class SpeakFirst(Order, frozen=True):
    """A reply to no turn of the caller. text: what it says; None: the model decides.

    idle_since_ms: the caller has said nothing since this point of the audio clock.
    """

    text: str | None = None
    idle_since_ms: float | None = None


class FailReply(Order, frozen=True):
    """The failure of the reply to this turn, with its reason. is_told: the fallback is said."""

    turn: UserTurn
    error: BackendError
    is_told: bool


class CancelReply(Order, frozen=True):
    """The client has cancelled this response; one that is over is ignored."""

    response_id: str


class ActOnCall(Order, frozen=True):
    """Do this to the call: what was said before it has been heard."""

    act: CallAct


class WatchIdleness(Order, frozen=True):
    """Whether nobody speaks and nothing is owed, from now on. timeout_ms: prompt after so long."""

    is_idle: bool
    timeout_ms: int | None = None


class CountBargeIn(Order, frozen=True):
    """The outcome of a sound over the agent, and when its onset arrived. kept_out: words that would
    have counted, but for their level; second_try: let in soon after one of those.
    """

    verdict: Verdict | Literal["kept_out", "second_try"]
    onset_arrival_s: float


Action = Step | Order


def name_of(action: Action) -> str:
    """Return the name for a log or a table: what it is, with what its reader tells apart."""
    match action:
        case Step():
            return action.value
        case CountBargeIn(verdict=verdict):
            return f"count a {verdict}"
        case InterruptReply(may_resume=True):
            return "InterruptReply (may resume)"
        case CommitUserItem(stays_open=True):
            return "CommitUserItem (stays open)"
        case TakeBack(is_cut=True):
            return "TakeBack (a cut)"
        case WatchIdleness(is_idle=is_idle):
            return "idle" if is_idle else "not idle"
    return type(action).__name__


# What each verdict does to the agent's playout. A pause ducks first: its fade is then as quick as
# that of an agent that was ducked before. A "stop" is `TurnTaking`'s to do.
PLAYOUT_FOR: dict[Verdict, tuple[Action, ...]] = {
    "duck": (Step.DUCK,),
    "hold": (Step.DUCK, Step.PAUSE),
    "resume": (Step.RESUME,),
    "go_on": (Step.RESUME,),
    "stop": (),
}
