"""Plivo: its XML, and its bidirectional audio stream. Pure.

Source: plivo.com/docs, "Audio Streaming Protocol Reference"; "The Stream Element".
"""

from __future__ import annotations

from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.carriers.signatures import check_plivo
from voiceloop.doors.carriers.twilio import Twilio, TwilioStream, redirect_of, twiml
from voiceloop.telephony import PhoneCall

MULAW = {"contentType": "audio/x-mulaw", "sampleRate": 8000}


class PlivoStream(TwilioStream):
    """As `Dialect`. Its marks are checkpoints; a cleared one never comes back."""

    def _read(self, told: dict[str, Any]) -> wire.Incoming | None:
        if told.get("event") == "playedStream":
            return wire.Played(wire.text_at(told, "name"))
        return super()._read(told)

    def _start(self, told: dict[str, Any]) -> wire.Started:
        super()._start(told)
        self._sid = wire.text_at(told, "start", "streamId")
        pairs = wire.text_at(told, "extra_headers").strip("{}").replace(";", ",").split(",")
        given = {name.strip(): value for name, _, value in (one.partition("=") for one in pairs)}
        return wire.Started(wire.text_at(told, "start", "callId"), given.get(wire.TICKET, ""))

    def media(self, payload: bytes) -> wire.Frame:
        return wire.event("playAudio", media={**MULAW, "payload": wire.base64_of(payload)})

    def mark(self, name: str) -> wire.Frame:
        return wire.event("checkpoint", streamId=self._sid, name=name)

    def clear(self) -> wire.Frame | None:
        return wire.event("clearAudio", streamId=self._sid)

    def digits(self, digits: str) -> wire.Frame | None:
        return wire.event("sendDTMF", dtmf=digits.replace("w", ""))


class Plivo(Twilio):
    """As `Twilio`. secret: the account's auth token."""

    name: ClassVar[str] = "plivo"
    announces: ClassVar[bool] = False
    call_field: ClassVar[str] = "CallUUID"
    dialled_field: ClassVar[str] = "DialStatus"
    header_prefix: ClassVar[str] = "SIP-"

    def prove(self, asked: wire.Asked) -> None:
        signature = asked.headers.get("x-plivo-signature-v3")
        nonce = asked.headers.get("x-plivo-signature-v3-nonce")
        check_plivo(self._secret, signature, nonce, asked.url, asked.fields)

    def prove_stream(self, asked: wire.Asked) -> None: ...

    def connect(self, call: PhoneCall, way: wire.Way) -> str:
        options = 'bidirectional="true" keepCallAlive="true" contentType="audio/x-mulaw;rate=8000"'
        given = quoteattr(f"{wire.TICKET}={way.ticket}")
        stream = f"<Stream {options} extraHeaders={given}>{escape(way.stream)}</Stream>"
        return twiml(f"{stream}{redirect_of(way)}")

    def busy(self) -> str:
        return twiml('<Hangup reason="busy"/>')

    def _number(self, number: str, first: str) -> str:
        return f"<Number>{escape(number.removeprefix('+'))}</Number>"

    def _address(self, target: str, first: str) -> str:
        return f"<User>{escape(target)}</User>"

    def stream(self) -> wire.Dialect:
        return PlivoStream()
