"""Digits of a telephone's keys as events in its stream: read once each, and written.

Owns which packets are one key (`DigitReader`), and what is sent of one (`DigitWriter`). Pure.

Source: RFC 4733, 2.3 and 2.5.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

from audio.frames import FRAME_MS, VOICE_HZ, samples_in
from voiceloop.doors.rtp.packet import RtpPacket, signed

KEYS = "0123456789*#ABCD"  # their place is their event (RFC 4733, 3.2)
EVENT_HZ = 8_000  # the clock of an event where nothing else is said (RFC 4733, 2.1)
_EVENT = struct.Struct("!BBH")
END = 0x80
VOLUME = 10  # dBm0 below zero, as a telephone sends
LONGEST = 0xFFFF  # units of one packet's duration; a key held for longer goes on in another event
N_REMEMBERED = 64  # events; a telephone sends some ten a second, a late packet comes within two
TONE_MS = 100.0  # a key, and the rest behind it: what every exchange takes (ITU-T Q.24)
REST_MS = 60.0
N_ENDS = 3  # packets that end an event (RFC 4733, 2.5.1.4)
FRAME = samples_in(FRAME_MS, VOICE_HZ)


class DigitReader:
    """The keys of one stream, each told once: by the first packet of its event that comes."""

    def __init__(self) -> None:
        self._seen: deque[int] = deque(maxlen=N_REMEMBERED)  # stamps of events
        self._last = (-1, 0, 0)  # event, stamp and duration of the newest
        self._ssrc: int | None = None

    def read(self, packet: RtpPacket) -> str | None:
        """The key that this packet is the first to tell of. What is no event is passed over."""
        if len(packet.payload) < _EVENT.size:
            return None
        event, _, duration = _EVENT.unpack_from(packet.payload)
        if event >= len(KEYS):
            return None
        if packet.ssrc != self._ssrc:
            self._ssrc, self._last = packet.ssrc, (-1, 0, 0)
            self._seen.clear()
        stamp = packet.timestamp
        if stamp in self._seen:
            if stamp == self._last[1]:
                self._last = event, stamp, max(duration, self._last[2])
            return None
        is_full = len(self._seen) == N_REMEMBERED
        if is_full and signed(stamp - self._seen[0], 32) < 0:
            return None  # older than anything that is remembered
        goes_on = self._goes_on(event, stamp)
        self._seen.append(stamp)
        if self._last[0] < 0 or signed(stamp - self._last[1], 32) > 0:
            self._last = event, stamp, duration
        return None if goes_on else KEYS[event]

    def _goes_on(self, event: int, stamp: int) -> bool:
        """Whether it is the same key, held for longer than one event counts."""
        last, at, duration = self._last
        return event == last and duration == LONGEST and stamp == at + duration & 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class EventPacket:
    """The packet to send now. is_first: of its event. lasts: samples at 24 kHz until the next is
    due.
    """

    payload: bytes
    is_first: bool
    lasts: int


class DigitWriter:
    """Keys to send, one after the other. clock_hz: of the event's duration, as of its stamps."""

    def __init__(self, clock_hz: int = EVENT_HZ) -> None:
        self._clock_hz = clock_hz
        self._waiting: deque[str] = deque()
        self._n_frames = 0  # of the key under way

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def put(self, keys: str) -> None:
        """Send these as well. Raises: ValueError where one is no key."""
        for key in keys:
            if key not in KEYS:
                raise ValueError(key)
        self._waiting.extend(keys)

    def next(self) -> EventPacket | None:
        """Return what is due each 20 ms; None in the rest behind a key, and where all are sent."""
        if not self._waiting:
            return None
        self._n_frames += 1
        n_tone, n_rest = round(TONE_MS / FRAME_MS), round(REST_MS / FRAME_MS)
        if self._n_frames > n_tone + N_ENDS - 1:
            if self._n_frames >= n_tone + max(n_rest, N_ENDS):
                self._waiting.popleft()
                self._n_frames = 0
            return None
        is_end = self._n_frames >= n_tone
        n_lasted = min(self._n_frames, n_tone) * FRAME * self._clock_hz // VOICE_HZ
        event = KEYS.index(self._waiting[0])
        payload = _EVENT.pack(event, END * is_end | VOLUME, n_lasted)
        return EventPacket(payload, self._n_frames == 1, FRAME)
