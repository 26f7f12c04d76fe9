"""The samples of one reply, in order: those still to be sent, and the last of those that were.

Owns the sent samples for as long as they may be needed once more: a client that flushes its buffer
at a false interruption has to be sent again what it threw away. Pure.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from voiceloop.reply.sound.loudness import Samples


class SampleQueue:
    """`draw` moves samples from unsent to sent, `rewind` moves the last of them back.

    n_keep: at least so many of the last sent samples can be taken back.
    Invariants: a sample is in one place only, and order never changes.
    """

    def __init__(self, n_keep: int) -> None:
        self._n_keep = n_keep
        self._unsent: deque[Samples] = deque()
        self._kept: deque[Samples] = deque()  # sent, as they were before any gain
        self.n_unsent = 0
        self.n_sent = 0

    def push(self, samples: Samples) -> None:
        if len(samples):
            self._unsent.append(samples)
            self.n_unsent += len(samples)

    def draw(self, count: int) -> Samples:
        """The next `count` samples, of which there must be so many; they count as sent."""
        samples = self._take(count)
        self.n_sent += count
        self._kept.append(samples)
        n_kept = self.n_kept
        while n_kept - len(self._kept[0]) >= self._n_keep:
            n_kept -= len(self._kept.popleft())
        return samples

    def rewind(self, count: int) -> int:
        """Put the last `count` sent samples back, or as many as are kept; returns how many."""
        kept = np.concatenate(self._kept) if self._kept else np.zeros(0, np.int16)
        count = min(count, len(kept))
        if count <= 0:
            return 0
        self._kept = deque([kept[: len(kept) - count]])
        self._unsent.appendleft(kept[len(kept) - count :])
        self.n_unsent += count
        self.n_sent -= count
        return count

    def cut(self, at: int) -> int:
        """Drop what is unsent from sample `at` of the reply on; returns how many were dropped."""
        n_before, n_stay = self.n_unsent, min(self.n_unsent, max(0, at - self.n_sent))
        stays = self._take(n_stay)
        self._unsent.clear()
        self.n_unsent = 0
        self.push(stays)
        return n_before - n_stay

    @property
    def n_kept(self) -> int:
        """Sent samples that `rewind` can put back."""
        return sum(map(len, self._kept))

    def _take(self, count: int) -> Samples:
        parts: list[Samples] = []
        while count:
            piece = self._unsent[0]
            if len(piece) <= count:
                parts.append(self._unsent.popleft())
            else:
                parts.append(piece[:count])
                self._unsent[0] = piece[count:]
            count -= len(parts[-1])
            self.n_unsent -= len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, np.int16)
