"""The state of a call: who does what at one moment.

Owns the two enums that name it, which pairs of them are legal, and the snapshot of what turn-taking
does not own itself: measurements alone. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from voiceloop.listening.events import UserTurn
from voiceloop.listening.release import TAKEN_BACK_MS
from voiceloop.realtime.settings import ServerVad, SessionSettings

# A "yeah" this close to the end answers the agent's question: one clause, or the time that people
# let pass between turns and the word itself.
REPLY_ENDS_SOON_MS = 600.0
# From the release of a reply to the caller's next sound: the caller had not finished.
RETRACT_S = TAKEN_BACK_MS / 1000.0


class Caller(Enum):
    """What the caller does, as far as the call knows."""

    SILENT = "silent"
    OVERLAPPING = "overlapping"  # sounds over the agent, and is judged: the wire knows nothing yet
    SPEAKING = "speaking"  # has the floor, and the wire knows
    PAUSED = "paused"  # has the floor, and is quiet at the moment
    TRANSCRIBING = "transcribing"  # has finished; the words are still to come


class Agent(Enum):
    """What the agent does in the conversation (replies out of band are nobody's turn)."""

    IDLE = "idle"
    PREPARING = "preparing"  # a reply is on its way, and nothing of it can be heard
    EARLY = "early"  # has begun before the turn was over, and is taken back where that goes on
    REPLYING = "replying"  # can be heard
    PAUSED = "paused"  # went silent at a sound that is being judged
    INTERRUPTED = "interrupted"  # its response has ended; it resumes after a false interruption

    @property
    def says_nothing(self) -> bool:
        """Whether nothing of it is heard, or is about to be."""
        return self in (Agent.IDLE, Agent.INTERRUPTED)


HAS_FLOOR = (Caller.SPEAKING, Caller.PAUSED)
# Beside whom the agent can be in these states. Only a sound that is being judged pauses the agent;
# who interrupts it has the floor; and it starts early in a pause, until the words are final.
LEGAL_BESIDE = {
    Agent.PAUSED: (Caller.OVERLAPPING,),
    Agent.INTERRUPTED: (Caller.SILENT, Caller.SPEAKING, Caller.PAUSED, Caller.TRANSCRIBING),
    Agent.EARLY: (Caller.PAUSED, Caller.TRANSCRIBING),
}


def is_legal(caller: Caller, agent: Agent) -> bool:
    """Whether both can be so at once."""
    return caller in LEGAL_BESIDE.get(agent, Caller)


@dataclass(frozen=True, slots=True)
class ReplyStatus:
    """The agent's reply in the conversation at one moment.

    is_open: its response has not ended on the wire. is_spoken: it has sound. heard_ms: of the whole
    reply; item_heard_ms: of its present item. remaining_ms: to be heard still, None while more may
    come. is_calling: it waits for tools that the server calls for it. said_lately: the text whose
    echo may be heard now. answers: the caller's turn it is for. released_s: when its first sound
    was let go. asks_to_wait: it is a line that is said until an answer is there.
    """

    response_id: str
    is_open: bool = True
    is_audible: bool = False
    is_spoken: bool = True
    heard_ms: float = 0.0
    item_heard_ms: float = 0.0
    remaining_ms: float | None = None
    is_calling: bool = False
    said_lately: str = ""
    answers: UserTurn | None = None
    released_s: float | None = None
    asks_to_wait: bool = False

    @property
    def ends_soon(self) -> bool:
        return self.remaining_ms is not None and self.remaining_ms < REPLY_ENDS_SOON_MS

    def is_fresh(self, onset_s: float) -> bool:
        """Whether the caller went on with the turn it answers, from `onset_s`, at once."""
        age_s = onset_s - self.released_s if self.released_s is not None else 0.0
        return self.answers is not None and age_s <= RETRACT_S

    def yields_to_voice(self, onset_s: float) -> bool:
        """Whether it gives way to a voice since `onset_s` before any word of it is known: what is
        said over a line belongs to the turn that it bridges, and words come no sooner than its.
        """
        return self.asks_to_wait or self.is_fresh(onset_s)


@dataclass(frozen=True, slots=True)
class CallStatus:
    """What turn-taking does not own, as it is measured at the moment of an event.

    reply: in the conversation, if there is one. is_answering: a response of the conversation is
    open on the wire, other than that of a reply that has started early. held_words: what the caller
    has said to which a reply is held whose first sound is there.
    """

    settings: SessionSettings
    reply: ReplyStatus | None = None
    is_answering: bool = False
    held_words: tuple[str, ...] | None = None

    def holds_reply_to(self, words: tuple[str, ...]) -> bool:
        """Whether a reply to just these words is held that may begin before the turn is over."""
        return self.settings.takes_answers_back and words == self.held_words

    @property
    def answers_turns(self) -> bool:
        """Whether the agent answers a turn by itself."""
        return self.creates_responses and self.settings.type == "realtime"

    @property
    def idle_timeout_ms(self) -> int | None:
        """After so much silence of both the client wants another turn."""
        detection = self.settings.turn_detection
        return detection.idle_timeout_ms if isinstance(detection, ServerVad) else None

    @property
    def allows_interruption(self) -> bool:
        detection = self.settings.turn_detection
        return detection is not None and detection.interrupt_response

    @property
    def creates_responses(self) -> bool:
        detection = self.settings.turn_detection
        return detection is not None and detection.create_response

    @property
    def asks_to_wait(self) -> bool:
        """Whether what is said at the moment is no answer."""
        return self.reply is not None and self.reply.asks_to_wait

    @property
    def may_ask_to_wait(self) -> bool:
        """Whether a line may be said: it is for who hears nothing, and would read none."""
        return self.settings.speaks and not self.is_answering

    @property
    def has_answer(self) -> bool:
        """Whether an answer is given at the moment, or a reply that takes its place."""
        return self.is_answering and not self.asks_to_wait

    @property
    def agent_has_floor(self) -> bool:
        """The agent speaks or is about to, and the caller may take that from it."""
        reply = self.reply
        return (
            reply is not None and self.allows_interruption and (reply.is_open or reply.is_audible)
        )


@dataclass(frozen=True, slots=True)
class PendingTranscript:
    """A turn whose words are to come; has_item: it stands in the conversation already.

    is_answered_anyway: even where it holds no words, for it was ended for its length, or its caller
    was asked to wait.
    """

    has_item: bool
    is_to_be_answered: bool
    is_answered_anyway: bool = False

    @property
    def asked_to_wait(self) -> PendingTranscript:
        """The same after `AskToWait`."""
        return replace(self, is_answered_anyway=True)
