"""Steps of a worker that failed with no stream to blame: how many may pass, and what is logged.

Pure: the clock is passed in.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable

MAX_FAILED_STEPS = 3  # one may pass (memory for a moment), more will not
FAILED_STEPS_WITHIN_S = 60.0


class FailedSteps:
    """The last of them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at_s = deque[float](maxlen=MAX_FAILED_STEPS)

    def add(self) -> bool:
        """Another one has failed; returns whether it is one too many."""
        now_s = self._clock()
        self._failed_at_s.append(now_s)
        is_full = len(self._failed_at_s) == MAX_FAILED_STEPS
        return is_full and now_s - self._failed_at_s[0] <= FAILED_STEPS_WITHIN_S


def traced(error: Exception) -> str:
    """Where an error that nobody foresaw came from; not its words, which may be a caller's."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{frames}"
