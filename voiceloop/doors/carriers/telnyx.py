"""Telnyx: TeXML answers, and its media stream in `rtp` mode. Pure.

Frames may come out of order: `media.chunk` says which is next. Without
`bidirectionalMode="rtp"` what is sent back is dropped without a word.
Source: developers.telnyx.com, "Stream call media over WebSocket", TeXML `<Stream>`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

from audio.codec import Encoding
from voiceloop.doors.carriers.dialect import (
    TICKET,
    Asked,
    Heard,
    Incoming,
    Started,
    Way,
    text_at,
)
from voiceloop.doors.carriers.signatures import check_telnyx, check_token
from voiceloop.doors.carriers.twilio import Twilio, TwilioStream, twiml
from voiceloop.errors import expected
from voiceloop.telephony import PhoneCall

ENCODINGS: dict[str, Encoding] = {"PCMU": "pcmu", "PCMA": "pcma"}


class TelnyxStream(TwilioStream):
    """As `Dialect`: Twilio's events, with names of its own in them."""

    def _read(self, told: dict[str, Any]) -> Incoming | None:
        found = super()._read(told)
        if isinstance(found, Heard) and (chunk := text_at(told, "media", "chunk")).isdigit():
            return replace(found, number=int(chunk[:12]))
        return found

    def _start(self, told: dict[str, Any]) -> Started:
        codec = text_at(told, "start", "media_format", "encoding")
        rate = text_at(told, "start", "media_format", "sample_rate")
        if codec not in ENCODINGS or rate not in ("8000", ""):
            raise expected("start.media_format", "PCMU or PCMA at 8000 Hz", f"{codec} {rate}")
        return Started(
            text_at(told, "start", "call_control_id"),
            text_at(told, "start", "custom_parameters", TICKET),
            text_at(told, "start", "user_id"),
            ENCODINGS[codec],
            caller=text_at(told, "start", "from"),
            called=text_at(told, "start", "to"),
        )

    def _frame(self, event: str, **fields: object) -> str:
        return json.dumps({"event": event, **fields}, separators=(",", ":"))


class Telnyx(Twilio):
    """As `Carrier`. public_key: base64, of the account. stream_token: what an application of the
    operator's own has Telnyx send with a stream; "" where only our answers begin streams.
    """

    name: ClassVar[str] = "telnyx"
    tells_call: ClassVar[bool] = False  # a stream names the call by another id than TeXML does

    def __init__(self, public_key: str, stream_token: str) -> None:
        super().__init__("", "")
        self._public_key = public_key
        self._stream_token = stream_token

    def prove(self, asked: Asked) -> None:
        signature = asked.headers.get("telnyx-signature-ed25519")
        sent_at = asked.headers.get("telnyx-timestamp")
        check_telnyx(self._public_key, signature, sent_at, asked.body, asked.now_s)

    def prove_stream(self, asked: Asked) -> bool:
        found = asked.headers.get("x-telnyx-streaming-auth-token")
        if not self._stream_token or found is None:
            return False
        check_token(found, self._stream_token)
        return True

    def connect(self, call: PhoneCall, way: Way) -> str:
        parameter = f"<Parameter name={quoteattr(TICKET)} value={quoteattr(way.ticket)}/>"
        stream = (
            f'<Stream url={quoteattr(way.stream)} codec="PCMU" bidirectionalMode="rtp" '
            f'bidirectionalCodec="PCMU">{parameter}</Stream>'
        )
        after = f'<Redirect method="POST">{escape(way.after)}</Redirect>'
        return twiml(f"<Connect>{stream}</Connect>{after}")

    def stream(self) -> TelnyxStream:
        return TelnyxStream()
