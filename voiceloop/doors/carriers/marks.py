"""The part of the agent's sound that a carrier has played, by the marks that come back. Pure: time
is passed in.

Owns when a mark is sent, and what its return tells: how much later than a client next door this one
plays what it is sent.
"""

from __future__ import annotations

from collections import deque

MARK_EVERY_MS = 200.0
MOST_PENDING = 64  # 13 s: a carrier that returns none is believed to play at once


class Marks:
    """The marks of one stream."""

    def __init__(self) -> None:
        self._n_marks = 0
        self._unmarked_ms = 0.0
        self._play_end_s = 0.0  # when a client next door would have played all of it
        self._pending: deque[tuple[str, float]] = deque(maxlen=MOST_PENDING)  # name, due
        self._delay_s: float | None = None  # None: none has come back yet

    def observe_sent(self, duration_ms: float, now_s: float) -> str:
        """More sound has left. Returns the mark that goes behind it, "" where none is due."""
        self._play_end_s = max(self._play_end_s, now_s) + duration_ms / 1000.0
        self._unmarked_ms += duration_ms
        return self.finish() if self._unmarked_ms >= MARK_EVERY_MS else ""

    def finish(self) -> str:
        """A mark behind what has left; "" where there is one."""
        if not self._unmarked_ms:
            return ""
        self._unmarked_ms = 0.0
        self._n_marks += 1
        self._pending.append((str(self._n_marks), self._play_end_s))
        return str(self._n_marks)

    def observe_played(self, name: str, now_s: float) -> None:
        """A mark came back. One from before a `clear` tells nothing: it was not played."""
        while any(name == pending for pending, _ in self._pending):
            one, due_s = self._pending.popleft()
            if one == name:
                self._delay_s = max(0.0, now_s - due_s)
                return

    def clear(self, now_s: float) -> None:
        """The carrier was told to drop what it has."""
        self._pending.clear()
        self._unmarked_ms = 0.0
        self._play_end_s = now_s

    def delay_ms(self, now_s: float) -> float:
        """How much later than a client next door it plays; a mark that is overdue counts."""
        if self._delay_s is None:
            return 0.0
        overdue_s = now_s - self._pending[0][1] if self._pending else 0.0
        return 1000.0 * max(self._delay_s, overdue_s)
