"""Messages of taps to the writer's thread, and the inbox between them.

Owns the bound on what waits: sound is thrown away before a call is held up. Messages are frozen.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from voiceloop.telemetry.tap import Encoding, KeptCall, Sounded

# Some two seconds of 64 calls, in both directions.
MAX_MESSAGES = 16_384
MAX_BYTES = 64 * 1024 * 1024  # a file of ten minutes that a client sends at once is 29 MB


@dataclass(frozen=True, slots=True)
class Begin:
    """Keep this call from now on. from_audio_s: of the caller's sound that came before."""

    call: KeptCall
    at_s: float
    from_audio_s: float
    consent: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Heard:
    """The caller's sound from this second on, in the session's input format."""

    samples: bytes
    rate_hz: int
    encoding: Encoding
    audio_s: float
    seconds: float
    at_s: float


@dataclass(frozen=True, slots=True)
class Said:
    sounded: Sounded
    is_private: bool


@dataclass(frozen=True, slots=True)
class Cut:
    item_id: str
    heard_ms: float


@dataclass(frozen=True, slots=True)
class Told:
    """An entry that is made already, of this list of the call's."""

    section: str
    entry: dict[str, Any]
    at_s: float


@dataclass(frozen=True, slots=True)
class Hide:
    """The order to keep neither voice from here on, or no more."""

    is_on: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class End:
    """The call is over. n_lost: messages that found no room."""

    at_s: float
    code: int
    why: str
    slots: dict[str, str]
    n_lost: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Keep nothing of it: deleted while it lasts, or while it got its name."""

    tenant: str


Message = Begin | Heard | Said | Cut | Told | Hide | End | Forget


class Inbox:
    """Messages of all calls, in order. `put` never waits."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Message, int]] = deque()
        self._n_bytes = 0
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, call_id: str, message: Message, n_bytes: int = 0) -> bool:
        """False where there is no room. A call's beginning and end always find some."""
        is_bounded = not isinstance(message, Begin | End | Forget)
        with self._changed:
            is_full = len(self._waiting) >= MAX_MESSAGES or self._n_bytes + n_bytes > MAX_BYTES
            if self._is_closed or (is_bounded and is_full):
                return False
            self._waiting.append((call_id, message, n_bytes))
            self._n_bytes += n_bytes
            if len(self._waiting) == 1:
                self._changed.notify()
        return True

    def take(self, wait_s: float) -> tuple[str, Message] | None:
        """The next; None where none comes in time, or none ever will."""
        with self._changed:
            if not self._waiting and not self._is_closed and wait_s > 0.0:
                self._changed.wait(wait_s)
            if not self._waiting:
                return None
            call_id, message, n_bytes = self._waiting.popleft()
            self._n_bytes -= n_bytes
            return call_id, message

    def close(self) -> None:
        """Close: what waits is still taken, and nothing more put."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()

    @property
    def is_over(self) -> bool:
        with self._changed:
            return self._is_closed and not self._waiting
