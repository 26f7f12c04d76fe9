"""How long a reply waits for its tools: what is left of its budget, and the line said meanwhile.

Owns these two for one reply, over all of its rounds. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from voiceloop.agent import Waiting


class ToolWait:
    """`begin` at each wait, `end` after it. lines: to say, the next one first; of the session."""

    def __init__(self, waiting: Waiting, lines: Iterator[str], clock: Callable[[], float]) -> None:
        self._waiting = waiting
        self._lines = lines
        self._clock = clock
        self._waited_s = 0.0
        self._began_s: float | None = None
        self._has_spoken = False

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> None:
        self._waited_s, self._began_s = self._present_s, None

    @property
    def _present_s(self) -> float:
        """Waited so far, in this wait and those before it."""
        under_way_s = self._clock() - self._began_s if self._began_s is not None else 0.0
        return self._waited_s + under_way_s

    @property
    def left_s(self) -> float:
        """What the reply may still wait for its tools."""
        return max(0.0, self._waiting.budget_ms / 1000 - self._present_s)

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0.0

    def quiet_s(self, play_end_s: float) -> float:
        """How long nothing needs to be said. play_end_s: when what was said before has sounded."""
        if self._has_spoken or not self._waiting.say:
            return self.left_s
        sounds_s = max(0.0, play_end_s - self._clock())
        return min(self.left_s, sounds_s + self._waiting.say_after_ms / 1000)

    def take_line(self) -> str | None:
        """What to say now; None where that has been said, or there is no time for it."""
        if self._has_spoken or self.is_spent or not self._waiting.say:
            return None
        self._has_spoken = True
        return next(self._lines)
