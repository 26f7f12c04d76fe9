"""Results that need not be asked for again: exact, for as long as the agent file says, bounded.

Owns nothing but memory: no task, and the clock is passed in. There is no cache by likeness: "is it
open on Sunday" and "is it closed on Sunday" are neighbours to every encoder, and no threshold
tells them apart.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

# Chosen: 2,000 results at the longest that an agent file allows by default, for all calls together.
MAX_BYTES = 8 * 2**20
# Of one entry beside its texts: a key, a tuple and two dictionary slots; measured with
# `sys.getsizeof` at some 400 bytes on CPython 3.11, rounded up.
ENTRY_BYTES = 512


@dataclass(frozen=True, slots=True)
class CallKey:
    """A call by what it asks: two of them with equal keys have the same answer.

    ``tenant``: on whose behalf, a key's or one caller's. ``arguments`` in canonical form.
    """

    source: str
    tool: str
    tenant: str
    arguments: str


class ResultCache:
    """The least recently used go first. clock: in seconds."""

    def __init__(self, clock: Callable[[], float], max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._entries: OrderedDict[CallKey, tuple[str, float]] = OrderedDict()  # text, expires at
        self._n_bytes = 0
        self._versions: Counter[str] = Counter()

    def get(self, key: CallKey) -> str | None:
        """The result, unless its lifetime is over."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        text, expires_s = entry
        if self._clock() >= expires_s:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return text

    def version(self, source: str) -> int:
        """Changes whenever `forget` is called; `put` wants the one from before the call."""
        return self._versions[source]

    def put(self, key: CallKey, text: str, lifetime_s: float, version: int) -> None:
        """Keep a result for so long; not one that a side effect may have outdated meanwhile."""
        if lifetime_s <= 0 or version != self._versions[key.source]:
            return
        self._drop(key)
        n_bytes = _size(key, text)
        if n_bytes > self._max_bytes:
            return
        self._entries[key] = (text, self._clock() + lifetime_s)
        self._n_bytes += n_bytes
        while self._n_bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def forget(self, source: str) -> None:
        """Something there has changed: no earlier answer of this source stands."""
        self._versions[source] += 1
        for key in [key for key in self._entries if key.source == source]:
            self._drop(key)

    def _drop(self, key: CallKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._n_bytes -= _size(key, entry[0])


def _size(key: CallKey, text: str) -> int:
    n_text = len(text.encode()) + len(key.arguments.encode())
    return n_text + len(key.source) + len(key.tool) + len(key.tenant) + ENTRY_BYTES
