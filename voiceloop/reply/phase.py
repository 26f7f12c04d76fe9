"""The phase of a reply: held, early, confirming, saying, interrupted, done.

Owns the one place where the phase is stored, and the table of what may follow what. Pure, but for
the event that tells who has something to send that it may.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import ClassVar

log = logging.getLogger(__name__)


class ReplyPhase(Enum):
    HELD = "held"  # made ahead: nothing of it is sent
    EARLY = "early"  # its held sound is heard, and may be taken back: the turn is not over yet
    CONFIRMING = "confirming"  # the answer: what was held is sent as the model writes it again
    SAYING = "saying"  # the answer: all of it is sent as it comes
    INTERRUPTED = "interrupted"  # its response has ended: it resumes in another, or is cancelled
    DONE = "done"  # nothing more comes


class PhaseEvent(Enum):
    """An event that changes the phase of a reply."""

    START_EARLY = "start early"
    TAKE_BACK = "take back"
    CONFIRM = "confirm"  # it answers, and the branch promises nothing of what is held
    RELEASE = "release"  # it answers, and nothing of it is uncertain any more
    INTERRUPT = "interrupt"
    RESUME = "resume"
    END = "end"


_HELD, _EARLY, _CONFIRMING, _SAYING, _INTERRUPTED, _DONE = ReplyPhase
# What is not here may not happen.
NEXT: dict[ReplyPhase, dict[PhaseEvent, ReplyPhase]] = {
    _HELD: {
        PhaseEvent.START_EARLY: _EARLY,
        PhaseEvent.CONFIRM: _CONFIRMING,
        PhaseEvent.RELEASE: _SAYING,
        PhaseEvent.END: _DONE,
    },
    _EARLY: {
        PhaseEvent.TAKE_BACK: _HELD,
        PhaseEvent.RELEASE: _SAYING,
        PhaseEvent.INTERRUPT: _INTERRUPTED,  # by the client, who cancels it
        PhaseEvent.END: _DONE,
    },
    _CONFIRMING: {
        PhaseEvent.RELEASE: _SAYING,
        PhaseEvent.INTERRUPT: _INTERRUPTED,
        PhaseEvent.END: _DONE,
    },
    _SAYING: {
        PhaseEvent.RELEASE: _SAYING,
        PhaseEvent.INTERRUPT: _INTERRUPTED,
        PhaseEvent.END: _DONE,
    },
    _INTERRUPTED: {
        PhaseEvent.RELEASE: _INTERRUPTED,  # the rest is certain, and waits
        PhaseEvent.INTERRUPT: _INTERRUPTED,  # the client says how much of it was heard
        PhaseEvent.RESUME: _CONFIRMING,  # a release follows, where all of it is certain
        PhaseEvent.END: _DONE,
    },
    # One that failed while it was interrupted may still resume, to say so.
    _DONE: {PhaseEvent.INTERRUPT: _DONE},
}


class Phase:
    """The phase of one reply, which gives it to its speech. answering: set while it is in a
    response.

    is_strict: an event that may not happen raises (in tests); else it is logged, and changes
    nothing.
    """

    is_strict: ClassVar[bool] = False

    def __init__(self) -> None:
        self.now = ReplyPhase.HELD
        self.answering = asyncio.Event()

    def change(self, event: PhaseEvent) -> None:
        """Raises: RuntimeError, where it is strict and the event may not happen in this phase."""
        after = NEXT[self.now].get(event)
        if after is None:
            found = f"{event.value} of a reply that is {self.now.value}"
            if self.is_strict:
                raise RuntimeError(f"expected an event that a reply may meet, found {found}")
            log.error("expected an event that a reply may meet, found %s", found)
            return
        self.now = after
        if after in (ReplyPhase.CONFIRMING, ReplyPhase.SAYING):
            self.answering.set()
        elif after is ReplyPhase.INTERRUPTED:
            self.answering.clear()

    @property
    def is_answering(self) -> bool:
        """Whether it is the answer, in a response."""
        return self.now in (ReplyPhase.CONFIRMING, ReplyPhase.SAYING)

    @property
    def is_ahead(self) -> bool:
        """Whether it is made ahead of its turn's end, and may be thrown away."""
        return self.now in (ReplyPhase.HELD, ReplyPhase.EARLY)
