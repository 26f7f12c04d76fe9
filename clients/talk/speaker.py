"""The loudspeaker of ``talk``: audio queued by the event loop, taken by the sound card's thread.

Knows how much of each item has been played, which a client must tell the server when it is
interrupted. One lock guards the queue; the sound card's callback holds it for a copy only.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from clients.connection import RATE_HZ
from clients.playout import Interrupted
from clients.recording import Samples

MAX_QUEUED_S = 120.0  # a server that sends a whole reply at once must not grow this without end


class Speaker:
    """Mono int16 at 24 kHz."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[tuple[str, Samples]] = deque()
        self._n_queued = 0
        self._item_id = ""
        self._n_played = 0

    def push(self, item_id: str, samples: Samples) -> None:
        """Queue audio of an item; what exceeds two minutes is dropped."""
        with self._lock:
            if self._n_queued + len(samples) <= MAX_QUEUED_S * RATE_HZ:
                self._queue.append((item_id, samples))
                self._n_queued += len(samples)

    def take(self, n_samples: int) -> Samples:
        """The next ``n_samples`` to play, padded with silence. Called by the sound card."""
        out = np.zeros(n_samples, dtype=np.int16)
        filled = 0
        with self._lock:
            while self._queue and filled < n_samples:
                item_id, samples = self._queue.popleft()
                used = samples[: n_samples - filled]
                out[filled : filled + len(used)] = used
                filled += len(used)
                if len(used) < len(samples):
                    self._queue.appendleft((item_id, samples[len(used) :]))
                if item_id != self._item_id:
                    self._item_id, self._n_played = item_id, 0
                self._n_played += len(used)
            self._n_queued -= filled
        return out

    def flush(self) -> Interrupted | None:
        """Drop what is queued; None if nothing was."""
        with self._lock:
            if not self._queue:
                return None
            item_id = self._queue[0][0]
            n_played = self._n_played if item_id == self._item_id else 0
            self._queue.clear()
            self._n_queued = 0
            return Interrupted(item_id, 1000.0 * n_played / RATE_HZ)

    @property
    def idle(self) -> bool:
        with self._lock:
            return not self._queue
