"""How many sessions there may be, and when no new one may start.

Owns the count of open sessions. Pure: no clock, no sockets.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from voiceloop.errors import Overloaded

RETRY_AFTER_S = 5  # a call lasts minutes; a slot may come free at any moment


class Admission:
    """Slots for sessions. ``drain`` stops new ones; those inside go on."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self.n_sessions = 0
        self.is_draining = False

    def check(self) -> None:
        """Raises Overloaded where ``slot`` would."""
        if self.is_draining:
            raise Overloaded("expected a server that takes new sessions, found one shutting down")
        if self.n_sessions >= self._max_sessions:
            raise Overloaded(
                f"expected at most {self._max_sessions} sessions, found all of them taken"
            )

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold a slot for one session. Raises Overloaded when there is none."""
        self.check()
        self.n_sessions += 1
        try:
            yield
        finally:
            self.n_sessions -= 1

    def drain(self) -> None:
        self.is_draining = True
