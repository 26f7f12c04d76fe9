"""Telnyx: TeXML answers, and its media stream in `rtp` mode. Pure.

Frames may come out of order: `media.chunk` says which is next. Without
`bidirectionalMode="rtp"` what is sent back is dropped without a word.
Source: developers.telnyx.com, "Stream call media over WebSocket", TeXML `<Stream>`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar
from xml.sax.saxutils import quoteattr

from audio.codec import Encoding
from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.carriers.signatures import check_telnyx
from voiceloop.doors.carriers.twilio import (
    Twilio,
    TwilioStream,
    parameter_of,
    redirect_of,
    twiml,
)
from voiceloop.errors import expected
from voiceloop.telephony import PhoneCall

ENCODINGS: dict[str, Encoding] = {"PCMU": "pcmu", "PCMA": "pcma"}


class TelnyxStream(TwilioStream):
    """As `Dialect`: Twilio's events, with names of its own in them."""

    def _read(self, told: dict[str, Any]) -> wire.Incoming | None:
        found = super()._read(told)
        if (
            isinstance(found, wire.Heard)
            and (chunk := wire.text_at(told, "media", "chunk")).isdecimal()
        ):
            return replace(found, number=int(chunk[:12]))
        return found

    def _start(self, told: dict[str, Any]) -> wire.Started:
        codec = wire.text_at(told, "start", "media_format", "encoding")
        rate = wire.text_at(told, "start", "media_format", "sample_rate")
        if codec not in ENCODINGS or rate not in ("8000", ""):
            raise expected("start.media_format", "PCMU or PCMA at 8000 Hz", f"{codec} {rate}")
        return wire.Started(
            wire.text_at(told, "start", "call_control_id"),
            wire.text_at(told, "start", "custom_parameters", wire.TICKET),
            ENCODINGS[codec],
        )

    def _frame(self, kind: str, **fields: object) -> str:
        return wire.event(kind, **fields)


class Telnyx(Twilio):
    """As `Twilio`. secret: none; it is the account's public key, base64."""

    name: ClassVar[str] = "telnyx"
    announces: ClassVar[bool] = False
    tells_call: ClassVar[bool] = False  # a stream names the call by another id than TeXML does

    def prove(self, asked: wire.Asked) -> None:
        signature = asked.headers.get("telnyx-signature-ed25519")
        sent_at = asked.headers.get("telnyx-timestamp")
        check_telnyx(self._secret, signature, sent_at, asked.body, asked.now_s)

    def prove_stream(self, asked: wire.Asked) -> None: ...

    def connect(self, call: PhoneCall, way: wire.Way) -> str:
        stream = (
            f'<Stream url={quoteattr(way.stream)} codec="PCMU" bidirectionalMode="rtp" '
            f'bidirectionalCodec="PCMU">{parameter_of(way)}</Stream>'
        )
        return twiml(f"<Connect>{stream}</Connect>{redirect_of(way)}")

    def stream(self) -> wire.Dialect:
        return TelnyxStream()
