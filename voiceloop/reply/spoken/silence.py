"""What is heard where the words of a reply are there, and the voice that is to say them is silent.

Owns how long a caller hears nothing of it: then a line follows whose sound is kept, once, and the
reply goes on behind it as soon as the voice is back. Where no line is to be said and the voice is
lost, the reply ends there, for the fallback to be said in its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from voiceloop.errors import WorkerLost

# From when there was no voice for a reply's words until a line takes their place, at the least:
# a second process (a cluster's, a spare) has opened a stream by then. Chosen.
LEAST_LOST_S = 0.5
# The same of a voice that is there, from the last text that it was given: a clause that takes it
# longer to begin is late for every caller. Chosen, some five times what the slowest voice of the
# presets takes on two cores.
LEAST_STALLED_S = 1.0
ROUNDING_S = 1e-6  # of sums of seconds: a wait that rounds to none would be waited for without end


@dataclass(frozen=True, slots=True)
class Silence:
    """Words wait for their sound. since_s: the caller hears nothing from then on. fed_at_s: when
    the voice was given the last of them. is_lost: there is no voice.
    """

    since_s: float
    fed_at_s: float
    is_lost: bool


class SilenceWatch:
    """Of one reply. `run` beside each of its rounds, and cancel it when all is said.

    quiet_s: how long the caller may hear nothing; None: for ever. silent_from_s: since when the
    caller waits at the latest. say_line: says one; False where there is none (any more).
    """

    def __init__(
        self,
        quiet_s: Callable[[], float | None],
        silent_from_s: Callable[[], float],
        say_line: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._quiet_s = quiet_s
        self._silent_from_s = silent_from_s
        self._say_line = say_line
        self._clock = clock
        self._may_have_line = True

    async def run(self, silence: Callable[[], Silence | None], changed: asyncio.Event) -> None:
        """silence: as it is now. changed: set where it may be another.

        Raises: WorkerLost where the voice is lost and there is no line to say.
        """
        while True:
            now = silence()
            left_s = self._left_s(now)
            if left_s is None or left_s > ROUNDING_S:
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await changed.wait()
            elif self._may_have_line:
                self._may_have_line = False
                if self._say_line():
                    return
            else:
                raise WorkerLost("expected a voice for the reply's words, found it lost")

    def _left_s(self, silence: Silence | None) -> float | None:
        if silence is None or (quiet_s := self._quiet_s()) is None:
            return None
        if not (silence.is_lost or self._may_have_line):
            return None  # it may still speak, or be lost
        due_s = max(silence.since_s, self._silent_from_s()) + quiet_s
        least_s = LEAST_LOST_S if silence.is_lost else LEAST_STALLED_S
        return max(due_s, silence.fed_at_s + least_s) - self._clock()
