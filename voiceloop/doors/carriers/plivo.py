"""Plivo: its XML, and its bidirectional audio stream. Pure.

Source: plivo.com/docs, "Audio Streaming Protocol Reference"; "The Stream Element".
"""

from __future__ import annotations

import json
from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

from voiceloop.doors.carriers.dialect import (
    CARRIER_LEAD_MS,
    TICKET,
    Asked,
    Frame,
    Incoming,
    Left,
    Played,
    Pressed,
    Started,
    Stopped,
    Way,
    base64_of,
    object_of,
    sound_at,
    text_at,
)
from voiceloop.doors.carriers.signatures import check_plivo
from voiceloop.errors import expected
from voiceloop.telephony import PhoneCall

LIVE = ("in-progress", "ringing", "")


class PlivoStream:
    """As `Dialect`. Its marks are checkpoints; a cleared one never comes back."""

    lead_ms = CARRIER_LEAD_MS
    has_marks = True

    def __init__(self) -> None:
        self._id = ""

    def read(self, frame: Frame) -> Incoming | None:
        told = object_of(frame)
        match told.get("event"):
            case "media":
                return sound_at(told)
            case "playedStream":
                return Played(text_at(told, "name"))
            case "dtmf":
                return Pressed(text_at(told, "dtmf", "digit"))
            case "stop":
                return Stopped()
            case "start":
                return self._start(told)
        return None

    def _start(self, told: dict[str, Any]) -> Started:
        self._id = text_at(told, "start", "streamId")
        encoding = text_at(told, "start", "mediaFormat", "encoding")
        if encoding not in ("audio/x-mulaw", ""):
            raise expected("start.mediaFormat.encoding", "audio/x-mulaw", encoding)
        pairs = text_at(told, "extra_headers").strip("{}").replace(";", ",").split(",")
        given = {name.strip(): value for name, _, value in (one.partition("=") for one in pairs)}
        call, account = text_at(told, "start", "callId"), text_at(told, "start", "accountId")
        return Started(call, given.get(TICKET, ""), account)

    def media(self, payload: bytes) -> Frame:
        sound = {"contentType": "audio/x-mulaw", "sampleRate": 8000, "payload": base64_of(payload)}
        return _frame("playAudio", media=sound)

    def mark(self, name: str) -> Frame:
        return _frame("checkpoint", streamId=self._id, name=name)

    def clear(self) -> Frame | None:
        return _frame("clearAudio", streamId=self._id)

    def digits(self, digits: str) -> Frame | None:
        return _frame("sendDTMF", dtmf=digits.replace("w", ""))

    def hang_up(self) -> Frame | None:
        return None


class Plivo:
    """As `Carrier`. token: the account's."""

    name: ClassVar[str] = "plivo"
    media_type: ClassVar[str] = "text/xml"
    tells_call: ClassVar[bool] = True

    def __init__(self, token: str) -> None:
        self._token = token

    def prove(self, asked: Asked) -> None:
        signature = asked.headers.get("x-plivo-signature-v3")
        nonce = asked.headers.get("x-plivo-signature-v3-nonce")
        check_plivo(self._token, signature, nonce, asked.url, asked.fields)

    def prove_stream(self, asked: Asked) -> bool:
        return False

    def ring(self, asked: Asked) -> PhoneCall:
        call_id = asked.get("CallUUID")
        if not call_id:
            raise expected("CallUUID", "the call's", None)
        headers = {name[4:]: value for name, value in asked.fields if name.startswith("SIP-")}
        is_outbound = asked.get("Direction") == "outbound"
        caller, called = asked.get("From"), asked.get("To")
        ids = {"call": call_id}
        return PhoneCall(self.name, caller, called, headers, ids, is_outbound=is_outbound)

    def after(self, asked: Asked) -> Left:
        how = asked.get("DialStatus")
        return Left(
            self.ring(asked),
            is_live=asked.get("CallStatus") in LIVE,
            failed=how if how != "completed" else "",
            was_transfer=bool(how),
        )

    def connect(self, call: PhoneCall, way: Way) -> str:
        options = 'bidirectional="true" keepCallAlive="true" contentType="audio/x-mulaw;rate=8000"'
        given = quoteattr(f"{TICKET}={way.ticket}")
        stream = f"<Stream {options} extraHeaders={given}>{escape(way.stream)}</Stream>"
        return _xml(f'{stream}<Redirect method="POST">{escape(way.after)}</Redirect>')

    def busy(self) -> str:
        return _xml('<Hangup reason="busy"/>')

    def over(self) -> str:
        return _xml("<Hangup/>")

    def dial(self, call: PhoneCall, target: str, way: Way) -> str:
        scheme, _, number = target.partition(":")
        noun = f"<User>{escape(target)}</User>"
        if scheme == "tel":
            noun = f"<Number>{escape(number.removeprefix('+'))}</Number>"
        return _xml(f'<Dial action={quoteattr(way.after)} method="POST">{noun}</Dial>')

    def stream(self) -> PlivoStream:
        return PlivoStream()


def _frame(event: str, **fields: object) -> str:
    return json.dumps({"event": event, **fields}, separators=(",", ":"))


def _xml(elements: str) -> str:
    return f"<Response>{elements}</Response>"
