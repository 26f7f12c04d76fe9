"""The place of each sample of a call on the recording's one clock, which is the session's samples.

Owns that clock: it goes on by the caller's samples, and by silence where the caller's line gave
none; a moment of the server's clock has its place on it. And the two channels, of which the newest
seconds can still be changed: a client that was interrupted tells late how much it has played. Pure.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 24_000
STALL_S = 0.3  # a line that is later than that may have stopped: as in `listening.caller_audio`
SETTLE_S = 0.2  # then what was only held up on its way has come, all at once
# Chosen: of a hundred frames one at least comes without delay, and a sound card that is off by 100
# parts in a million has strayed by 0.2 ms.
WINDOW_S = 2.0

Samples = NDArray[np.int16]


class SessionClock:
    """Seconds on the recording. began_s: where it begins, on the server's clock.

    The offset between the two is that of the frames that came soonest: a frame that was held up
    moves nothing, and a clock of the caller's that is fast or slow is followed.
    """

    def __init__(self, began_s: float) -> None:
        self._zero_s = began_s  # the server's clock at the recording's first sample
        self.end_s = 0.0  # of the caller's sound that has a place
        self._audio_s = 0.0  # of it without the silences
        self._waiting_s = 0.0  # that has none yet: it may follow a silence
        self._late_since_s: float | None = began_s
        self._least_lag_s = np.inf  # of the window, or since the line is late
        self._window_s = 0.0

    def at(self, now_s: float) -> float:
        """Return where this moment of the server's clock lies."""
        return now_s - self._zero_s

    def advance(self, seconds: float, now_s: float) -> float | None:
        """More of the caller's sound has come in now: where it, and all that waits, begins.

        None: that is not known yet, for the line was silent and the rest of it may be on its way.
        """
        self._waiting_s += seconds
        lag_s = now_s - self._zero_s - (self.end_s + self._waiting_s)
        if self._late_since_s is None:
            if lag_s < STALL_S:
                self._follow(lag_s, seconds)
                return self._place(0.0)
            self._late_since_s, self._least_lag_s = now_s, lag_s
        self._least_lag_s = min(self._least_lag_s, lag_s)
        is_first = self._audio_s == 0.0 and self._waiting_s == seconds
        if is_first:
            self._late_since_s = now_s
        return None if now_s - self._late_since_s < SETTLE_S else self.settle()

    def settle(self) -> float:
        """Settle: nothing more is on its way, so all that waits has its place."""
        if self._late_since_s is None:  # nothing waits, and nothing is known of a silence
            return self.end_s
        lag_s, self._late_since_s = self._least_lag_s, None
        self._least_lag_s, self._window_s = np.inf, 0.0
        if not np.isfinite(lag_s):
            return self.end_s
        if lag_s < 0.0:  # a client that sends a file: the recording is as long as the file
            self._zero_s += lag_s
        return self._place(max(0.0, lag_s))

    def skip(self, seconds: float) -> None:
        """Skip so much of the caller's sound that was lost on its way here; after `settle`."""
        self.end_s += seconds
        self._audio_s += seconds

    def _place(self, silence_s: float) -> float:
        begin_s = self.end_s + silence_s
        self._audio_s += self._waiting_s
        self.end_s, self._waiting_s = begin_s + self._waiting_s, 0.0
        return begin_s

    def _follow(self, lag_s: float, seconds: float) -> None:
        if lag_s < 0.0:
            self._zero_s += lag_s
            lag_s, self._window_s, self._least_lag_s = 0.0, 0.0, np.inf
        self._least_lag_s = min(self._least_lag_s, lag_s)
        self._window_s += seconds
        if self._window_s >= WINDOW_S:
            self._zero_s += self._least_lag_s
            self._window_s, self._least_lag_s = 0.0, np.inf


LEFT, RIGHT = 0, 1  # what the listener was given, and what the caller was given to hear


class Sheet:
    """Two channels of int16 [n, 2] at RATE_HZ from `start` on; what lies before is settled.

    Invariants: `start` never decreases, and what was taken is never changed.
    """

    def __init__(self) -> None:
        self.start = 0
        self._samples = np.zeros((0, 2), np.int16)

    @property
    def end(self) -> int:
        return self.start + len(self._samples)

    def put(self, channel: int, at: int, samples: Samples) -> int:
        """Add these samples there, or where what is settled ends. Returns where they begin."""
        at = max(at, self.start)
        self._extend(at + len(samples))
        own = self._samples[at - self.start : at - self.start + len(samples), channel]
        both = own.astype(np.int32) + samples  # of a reply beside the conversation's both are heard
        own[:] = np.clip(both, -32768, 32767)
        return at

    def silence(self, channel: int, begin: int, end: int) -> None:
        """Place silence in between, as far as that is not settled."""
        self._samples[max(0, begin - self.start) : max(0, end - self.start), channel] = 0

    def take(self, until: int) -> Samples:
        """Return the settled samples before this place: [n, 2]."""
        n_taken = max(0, until - self.start)
        self._extend(until)
        taken, self._samples = self._samples[:n_taken], self._samples[n_taken:].copy()
        self.start += n_taken
        return taken

    def _extend(self, until: int) -> None:
        if (n_lacking := until - self.end) > 0:
            self._samples = np.concatenate((self._samples, np.zeros((n_lacking, 2), np.int16)))
