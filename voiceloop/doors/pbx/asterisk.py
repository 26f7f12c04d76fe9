"""Asterisk's WebSocket channel (`chan_websocket`), its controls as JSON. Pure.

Four faults of it are met by what is never done here. Sound may come before `MEDIA_START`
(asterisk#1712): it is kept until then. `STOP_MEDIA_BUFFERING` loses an odd frame (#2006), and
`FLUSH_MEDIA` does not lower the count of its queue (#1304): neither is ever sent, because every
message is one whole frame, sent when it is due. A backlog of a timed channel never drains (#2115):
the channel is asked for as unbuffered (`u` in the dial string), and then has no queue.

Source: docs.asterisk.org, "WebSocket"; github.com/asterisk/asterisk, pull requests 1555, 2120.
"""

from __future__ import annotations

import logging

from audio.codec import Encoding
from voiceloop.doors.carriers import dialect as wire
from voiceloop.errors import expected

log = logging.getLogger(__name__)

# An exchange next door, which plays what comes as it comes; nothing takes it back.
PBX_LEAD_MS = 40.0
FORMATS: dict[str, tuple[Encoding, int]] = {
    "ulaw": ("pcmu", 8000),
    "alaw": ("pcma", 8000),
    "slin": ("pcm16", 8000),
    "slin16": ("pcm16", 16_000),
    "slin24": ("pcm16", 24_000),
    "slin48": ("pcm16", 48_000),
}


class AsteriskStream(wire.Dialect):
    """As `Dialect`."""

    lead_ms = PBX_LEAD_MS

    def read(self, frame: wire.Frame) -> wire.Incoming | None:
        if isinstance(frame, bytes):
            return wire.plain_sound(frame)
        if not frame.startswith("{"):
            raise expected("Asterisk's frame", "JSON (f(json) in the dial string)", frame)
        told = wire.object_of(frame)
        match told.get("event"):
            case "MEDIA_START":
                return _started(told)
            case "DTMF_END":
                return wire.Pressed(wire.text_at(told, "digit"))
        return None

    def media(self, payload: bytes) -> wire.Frame:
        return payload

    def hang_up(self) -> wire.Frame | None:
        return '{"command": "HANGUP"}'


def _started(told: dict[str, object]) -> wire.Started:
    name = wire.text_at(told, "format")
    if name not in FORMATS:
        raise expected("MEDIA_START format", ", ".join(FORMATS), name)
    if told.get("unbuffered") not in (True, "true"):
        log.warning("Asterisk: expected an unbuffered channel (u in the dial string), found none")
    encoding, rate_hz = FORMATS[name]
    call = wire.text_at(told, "channel_id") or wire.text_at(told, "connection_id")
    return wire.Started(call, encoding=encoding, rate_hz=rate_hz)
