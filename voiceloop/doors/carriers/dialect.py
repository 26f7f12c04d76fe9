"""The common part of all carriers' streams: what comes in, what goes out, who has rung.

Owns those shapes, and the reading of a frame. One file beside this for each carrier. Pure.
"""

from __future__ import annotations

import base64
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from audio.codec import Encoding
from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.client_events import parse_frame
from voiceloop.telephony import PhoneCall

# At the carrier before it plays: over the internet deliveries hesitate by 100 ms and more, and what
# it holds is dropped by `clear`.
CARRIER_LEAD_MS = 200.0
TICKET = "ticket"  # the parameter that the carrier hands on from the answer to the stream
MAX_FRAME_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Started:
    """The stream's first message. call: the carrier's id."""

    call: str
    ticket: str = ""
    encoding: Encoding = "pcmu"
    rate_hz: int = 8000


@dataclass(frozen=True, slots=True)
class Heard:
    """The caller's next sound. number: its place, where the carrier does not keep the order."""

    payload: bytes
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Played:
    """A mark came back."""

    name: str


@dataclass(frozen=True, slots=True)
class Pressed:
    """A key of the caller's telephone."""

    key: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """The carrier ends the stream."""


Incoming = Started | Heard | Played | Pressed | Stopped
Frame = str | bytes


class Dialect(ABC):
    """One stream's. lead_ms: how far ahead sound is sent."""

    lead_ms: ClassVar[float] = CARRIER_LEAD_MS

    @abstractmethod
    def read(self, frame: Frame) -> Incoming | None:
        """Return what it says; None: nothing that matters here. Raises: InvalidRequest,
        AudioError.
        """

    @abstractmethod
    def media(self, payload: bytes) -> Frame: ...

    def mark(self, name: str) -> Frame | None:
        """Have it tell when all before is played; None where it tells nothing."""
        return None

    def clear(self) -> Frame | None:
        """Drop what is queued; None where nothing is."""
        return None

    def digits(self, digits: str) -> Frame | None:
        """Press these; None where they have to be sent as tones."""
        return None

    def hang_up(self) -> Frame | None:
        """End the call; None where the end of the stream does."""
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a carrier. url: where the operator says that it was sent. now_s: the epoch."""

    url: str
    headers: Mapping[str, str]
    now_s: float
    body: bytes = b""
    fields: Sequence[tuple[str, str]] = ()

    def get(self, name: str) -> str:
        """A field of its form; "" where it is not there."""
        return next((value for key, value in self.fields if key == name), "")


@dataclass(frozen=True, slots=True)
class Left:
    """The stream is over, or a transfer: what follows? is_live: the caller is still there.

    failed: why the transfer has failed; "" where there was none, or it was a success.
    """

    call: PhoneCall
    is_live: bool
    failed: str = ""


@dataclass(frozen=True, slots=True)
class Way:
    """The carrier's next step after an answer: to the stream with this ticket, then to `after`.

    announcement: where it asks what to say to whoever takes a transferred call; "" for nothing.
    """

    stream: str
    ticket: str
    after: str
    announcement: str = ""


def object_of(frame: Frame) -> dict[str, Any]:
    """Raises: InvalidRequest: it is no JSON object."""
    if len(frame) > MAX_FRAME_BYTES:
        raise InvalidRequest(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, found more")
    return parse_frame(frame)


def plain_sound(frame: bytes) -> Heard:
    """A binary frame. Raises: InvalidRequest."""
    if len(frame) > MAX_FRAME_BYTES:
        raise InvalidRequest(f"expected a frame of at most {MAX_FRAME_BYTES} bytes, found more")
    return Heard(frame)


def text_at(told: Any, *path: str) -> str:
    """A text or a number at this path, as text; "" where there is none."""
    for name in path:
        told = told.get(name) if isinstance(told, dict) else None
    is_number = isinstance(told, int) and not isinstance(told, bool)
    return told if isinstance(told, str) else str(told) if is_number else ""


def sound_at(told: Any) -> Heard | None:
    """Return the time of a `media` message; None of another track than the caller's. Raises:
    InvalidRequest.
    """
    if text_at(told, "media", "track") not in ("", "inbound", "inbound_track"):
        return None
    try:
        return Heard(base64.b64decode(text_at(told, "media", "payload"), validate=True))
    except ValueError:
        raise expected("media.payload", "base64", "other bytes") from None


def base64_of(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def event(kind: str, **fields: object) -> str:
    """A frame of JSON, named by its `event`."""
    return json.dumps({"event": kind, **fields}, separators=(",", ":"))
