"""What turn-taking decides: each action is done by the performer at once, in order.

Owns these messages. They name what is to be done and nothing of how; immutable.
"""

from __future__ import annotations

import msgspec

from voiceloop.call.barge_in import Verdict
from voiceloop.errors import BackendError
from voiceloop.listening.events import PauseWeighed, UserTurn
from voiceloop.realtime.response import ResponseHandle


class Action(msgspec.Struct, frozen=True):
    """Something to be done now."""


# --- the caller's turn on the wire ---


class OpenUserTurn(Action, frozen=True):
    """Tell the client that the caller speaks, since this point of the audio clock.

    Where the settings allow it this closes the response that is open.
    """

    onset_ms: float


class CloseUserTurn(Action, frozen=True):
    """Tell the client that the caller has stopped, at this point of the audio clock."""

    end_ms: float


class CommitUserItem(Action, frozen=True):
    """Put the caller's item into the conversation; the words of this segment are to be its."""

    segment: int


class DropUserItem(Action, frozen=True):
    """Forget the open user item: there were no words."""


class SendPartial(Action, frozen=True):
    """The hypothesis of the open turn."""

    stable: tuple[str, ...]
    unstable: tuple[str, ...]


class SendTranscript(Action, frozen=True):
    """The final words of a committed item."""

    turn: UserTurn


class SendTranscriptionFailure(Action, frozen=True):
    """A committed item stays without words."""

    turn: UserTurn
    error: BackendError


# --- the listener ---


class EndSegment(Action, frozen=True):
    """The open segment was a turn of the caller; its words follow as `TurnTranscribed`."""


class CommitSegment(Action, frozen=True):
    """The client ended the turn: its words belong to this item. Answered by `SegmentCommitted`."""

    item_id: str


class DiscardSegment(Action, frozen=True):
    """Forget the open segment: a backchannel, noise, or audio that the client cleared."""


class RequestWords(Action, frozen=True):
    """Have the fullest hypothesis of the open segment reported now."""


# --- what is prepared while the caller speaks ---


class Prefill(Action, frozen=True):
    """Bring the conversation so far into the language model's cache."""


class StageWords(Action, frozen=True):
    """Let the language model read the words that will stay (all of them where `is_full`)."""

    stable: tuple[str, ...]
    unstable: tuple[str, ...]
    is_full: bool


class ConsiderPreemptiveReply(Action, frozen=True):
    """Begin the reply ahead of the end of the turn, if it pays."""

    pause: PauseWeighed


class RestPreemptiveReply(Action, frozen=True):
    """The caller goes on: add nothing to the preemptive reply, and keep it."""


class DropPreemptiveReply(Action, frozen=True):
    """Another turn of the caller begins: the preemptive reply was for the last one."""


class AbandonPreparation(Action, frozen=True):
    """Drop the preemptive reply and the staged words: no answer to them will be asked for."""


# --- the agent's reply in the conversation ---


class ReduceLead(Action, frozen=True):
    """Send less far ahead: somebody may be about to speak."""


class Duck(Action, frozen=True):
    """Play more quietly."""


class Pause(Action, frozen=True):
    """Fade out and send nothing; no sample is lost."""


class Resume(Action, frozen=True):
    """Undo `ReduceLead`, `Duck` and `Pause`."""


class InterruptReply(Action, frozen=True):
    """End the reply's response: the caller has the floor.

    heard_ms: how much of its item was heard; None: it counts as never said, for the caller had not
    finished. may_resume: the sound may turn out to be nobody's (a false interruption).
    """

    heard_ms: float | None
    may_resume: bool


class ResumeInterrupted(Action, frozen=True):
    """It was a false interruption: the reply goes on after what was heard, in a new response."""


class DropInterrupted(Action, frozen=True):
    """The caller spoke to the agent: the interrupted reply will not resume."""


class AnswerTurn(Action, frozen=True):
    """Reply to this turn of the caller; with the preemptive reply where it fits."""

    turn: UserTurn


class BeginReply(Action, frozen=True):
    """Reply in this response, which the client has asked for."""

    response: ResponseHandle


class SpeakFirst(Action, frozen=True):
    """A reply to no turn of the caller. text: what it says; None: the model decides."""

    text: str | None = None


class PromptIdleCaller(Action, frozen=True):
    """The caller has said nothing since this point of the audio clock: speak first."""

    since_ms: float


class FailReply(Action, frozen=True):
    """There is no reply to this turn, for this reason. is_told: the fallback is said."""

    turn: UserTurn
    error: BackendError
    is_told: bool


class CancelReply(Action, frozen=True):
    """The client has cancelled this response; one that is over is ignored."""

    response_id: str


class TruncateReply(Action, frozen=True):
    """The client has played only so much of this item, and plays no more of it."""

    item_id: str
    audio_end_ms: float


# --- time and counting ---


class WatchIdleness(Action, frozen=True):
    """Whether nobody speaks and nothing is owed, from now on. timeout_ms: prompt after so long."""

    is_idle: bool
    timeout_ms: int | None = None


class CountBargeIn(Action, frozen=True):
    """What a sound over the agent came to, and when its onset arrived."""

    verdict: Verdict
    onset_arrival_s: float
