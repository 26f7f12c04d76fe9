"""Twilio: TwiML answers, and the frames of a bidirectional media stream. Pure.

Source: twilio.com/docs/voice: twiml/stream, twiml/connect, media-streams/websocket-messages.
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
from voiceloop.doors.carriers.signatures import check_twilio
from voiceloop.errors import Unproved, expected
from voiceloop.telephony import PhoneCall

# Of a call, or of the leg that it was transferred to, as `CallStatus` and `DialCallStatus` name it.
LIVE = ("ringing", "in-progress", "queued", "")
ANSWERED = ("completed", "answered")


class TwilioStream:
    """As `Dialect`."""

    lead_ms = CARRIER_LEAD_MS
    has_marks = True

    def __init__(self) -> None:
        self._sid = ""

    def read(self, frame: Frame) -> Incoming | None:
        return self._read(object_of(frame))

    def _read(self, told: dict[str, Any]) -> Incoming | None:
        match told.get("event"):
            case "media":
                return sound_at(told)
            case "mark":
                return Played(text_at(told, "mark", "name"))
            case "dtmf":
                return Pressed(text_at(told, "dtmf", "digit"))
            case "stop":
                return Stopped()
            case "start":
                return self._start(told)
        return None

    def _start(self, told: dict[str, Any]) -> Started:
        self._sid = text_at(told, "start", "streamSid") or text_at(told, "streamSid")
        encoding = text_at(told, "start", "mediaFormat", "encoding")
        if encoding not in ("audio/x-mulaw", ""):
            raise expected("start.mediaFormat.encoding", "audio/x-mulaw", encoding)
        return Started(
            text_at(told, "start", "callSid"),
            text_at(told, "start", "customParameters", TICKET),
            text_at(told, "start", "accountSid"),
        )

    def media(self, payload: bytes) -> Frame:
        return self._frame("media", media={"payload": base64_of(payload)})

    def mark(self, name: str) -> Frame:
        return self._frame("mark", mark={"name": name})

    def clear(self) -> Frame | None:
        return self._frame("clear")

    def digits(self, digits: str) -> Frame | None:
        return None

    def hang_up(self) -> Frame | None:
        return None

    def _frame(self, event: str, **fields: object) -> str:
        return json.dumps({"event": event, "streamSid": self._sid, **fields}, separators=(",", ":"))


class Twilio:
    """As `Carrier`. token: the account's; account: its SID, "" for any."""

    name: ClassVar[str] = "twilio"
    media_type: ClassVar[str] = "text/xml"
    signature: ClassVar[str] = "x-twilio-signature"
    tells_call: ClassVar[bool] = True

    def __init__(self, token: str, account: str) -> None:
        self._token = token
        self._account = account

    def prove(self, asked: Asked) -> None:
        check_twilio(self._token, asked.headers.get(self.signature), asked.url, asked.fields)
        if self._account and asked.get("AccountSid") != self._account:
            raise Unproved("expected a call of the configured account, found one of another")

    def prove_stream(self, asked: Asked) -> bool:
        check_twilio(self._token, asked.headers.get(self.signature), asked.url)
        return False

    def ring(self, asked: Asked) -> PhoneCall:
        return phone_call(self.name, asked)

    def after(self, asked: Asked) -> Left:
        was_transfer, how = bool(dialled := asked.get("DialCallStatus")), dialled or "no answer"
        return Left(
            self.ring(asked),
            is_live=asked.get("CallStatus") in LIVE,
            failed=how if was_transfer and how not in ANSWERED else "",
            was_transfer=was_transfer,
        )

    def connect(self, call: PhoneCall, way: Way) -> str:
        parameter = f"<Parameter name={quoteattr(TICKET)} value={quoteattr(way.ticket)}/>"
        stream = f"<Stream url={quoteattr(way.stream)}>{parameter}</Stream>"
        return twiml(f'<Connect action={quoteattr(way.after)} method="POST">{stream}</Connect>')

    def busy(self) -> str:
        return twiml('<Reject reason="busy"/>')

    def over(self) -> str:
        return twiml("<Hangup/>")

    def dial(self, call: PhoneCall, target: str, way: Way) -> str:
        scheme, _, number = target.partition(":")
        noun = f"<Sip>{escape(target)}</Sip>"
        if scheme == "tel":
            noun = f"<Number>{escape(number)}</Number>"
        return twiml(f'<Dial action={quoteattr(way.after)} method="POST">{noun}</Dial>')

    def stream(self) -> TwilioStream:
        return TwilioStream()


def twiml(verbs: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'


def phone_call(name: str, asked: Asked) -> PhoneCall:
    """Who calls whom, by the fields that TwiML, TeXML and cXML share. Raises: InvalidRequest."""
    call_id = asked.get("CallSid")
    if not call_id:
        raise expected("CallSid", "the call's", None)
    headers = {
        key.removeprefix("SipHeader_"): value
        for key, value in asked.fields
        if key.startswith("SipHeader_")
    }
    ids = {"call": call_id, "account": asked.get("AccountSid")}
    is_outbound = asked.get("Direction").startswith("outbound")
    caller, called = asked.get("From"), asked.get("To")
    return PhoneCall(name, caller, called, headers, ids, is_outbound=is_outbound)
