"""Answers over HTTP that need not be generated again, by what was asked, exactly.

Owns a store bounded in bytes, the least recently used first out. There is no cache by likeness:
"can I cancel" and "can't I cancel" are neighbours to every encoder of sentences, and no threshold
tells them apart.
"""

from __future__ import annotations

from collections import OrderedDict

# Of one entry beside its JSON: a digest, two numbers and a slot, some 200 bytes on CPython 3.11.
ENTRY_BYTES = 256
HEADER = "x-voiceloop-cache"  # "hit" or "miss", on answers that may be kept


class AnswerCache:
    """Answers as JSON, by digest. max_bytes: of all of them; 0 keeps nothing."""

    def __init__(self, max_bytes: int = 0) -> None:
        self._max_bytes = max_bytes
        self._n_bytes = 0
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()

    @property
    def keeps(self) -> bool:
        return self._max_bytes > 0

    def get(self, key: bytes) -> bytes | None:
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def put(self, key: bytes, answer: bytes) -> None:
        """What is larger than the whole store is passed over."""
        n_bytes = len(answer) + ENTRY_BYTES
        if n_bytes > self._max_bytes:
            return
        self._drop(key)
        self._answers[key] = answer
        self._n_bytes += n_bytes
        while self._n_bytes > self._max_bytes:
            self._drop(next(iter(self._answers)))

    def _drop(self, key: bytes) -> None:
        before = self._answers.pop(key, None)
        if before is not None:
            self._n_bytes -= len(before) + ENTRY_BYTES
