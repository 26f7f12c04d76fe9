"""Clauses that were spoken before: kept as samples, so that the same words cost nothing again.

Owns a bounded store, least recently used first out. A greeting, a fallback and what an agent says
in every other call are found here. A key must hold all that the sound depends on: the voice, the
speed, the text, and whether more comes behind it. Only voices whose clauses do not depend on what
was said before may use it.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

KEPT_MB = 32  # by default: some six minutes of float32 at 24 kHz, or 150 clauses
MAX_CLAUSES = 4_096  # the bound where clauses are short

TimesT = TypeVar("TimesT")


class SpokenClause(NamedTuple, Generic[TimesT]):
    """float32 samples [n] of one clause, and where its words lie, as the model told it."""

    wave: NDArray[np.float32]
    times: TimesT


class ClauseAudio(Generic[TimesT]):
    """Clauses by what they were made of. max_bytes: of samples; 0 keeps nothing."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._clauses: OrderedDict[Hashable, SpokenClause[TimesT]] = OrderedDict()
        self.n_hits = 0
        self.n_misses = 0

    def get(self, key: Hashable) -> SpokenClause[TimesT] | None:
        """Return what was kept. The samples cannot be written to: a voice that fades them must
        copy.
        """
        found = self._clauses.get(key)
        if found is None:
            self.n_misses += 1
            return None
        self.n_hits += 1
        self._clauses.move_to_end(key)
        return found

    def put(self, key: Hashable, wave: NDArray[np.float32], times: TimesT) -> None:
        """Keep a copy; what is larger than the whole store is passed over."""
        if wave.nbytes > self._max_bytes:
            return
        before = self._clauses.pop(key, None)
        if before is not None:
            self._n_bytes -= before.wave.nbytes
        kept = wave.copy()
        kept.flags.writeable = False
        self._clauses[key] = SpokenClause(kept, times)
        self._n_bytes += kept.nbytes
        while self._n_bytes > self._max_bytes or len(self._clauses) > MAX_CLAUSES:
            _, oldest = self._clauses.popitem(last=False)
            self._n_bytes -= oldest.wave.nbytes

    def __len__(self) -> int:
        return len(self._clauses)
