"""Twilio: TwiML answers, and the frames of a bidirectional media stream. Pure.

Source: twilio.com/docs/voice: twiml/stream, twiml/connect, media-streams/websocket-messages.
"""

from __future__ import annotations

from typing import Any, ClassVar
from xml.sax.saxutils import escape, quoteattr

from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.carriers.signatures import check_twilio
from voiceloop.errors import expected
from voiceloop.telephony import PhoneCall

# Of a call, or of the leg that it was transferred to, as `CallStatus` and `DialCallStatus` name it.
LIVE = ("ringing", "in-progress", "queued", "")
ANSWERED = ("completed", "answered", "")


class TwilioStream(wire.Dialect):
    """As `Dialect`."""

    def __init__(self) -> None:
        self._sid = ""

    def read(self, frame: wire.Frame) -> wire.Incoming | None:
        return self._read(wire.object_of(frame))

    def _read(self, told: dict[str, Any]) -> wire.Incoming | None:
        match told.get("event"):
            case "media":
                return wire.sound_at(told)
            case "mark":
                return wire.Played(wire.text_at(told, "mark", "name"))
            case "dtmf":
                return wire.Pressed(wire.text_at(told, "dtmf", "digit"))
            case "stop":
                return wire.Stopped()
            case "start":
                return self._start(told)
        return None

    def _start(self, told: dict[str, Any]) -> wire.Started:
        self._sid = wire.text_at(told, "start", "streamSid") or wire.text_at(told, "streamSid")
        encoding = wire.text_at(told, "start", "mediaFormat", "encoding")
        if encoding not in ("audio/x-mulaw", ""):
            raise expected("start.mediaFormat.encoding", "audio/x-mulaw", encoding)
        return wire.Started(
            wire.text_at(told, "start", "callSid"),
            wire.text_at(told, "start", "customParameters", wire.TICKET),
        )

    def media(self, payload: bytes) -> wire.Frame:
        return self._frame("media", media={"payload": wire.base64_of(payload)})

    def mark(self, name: str) -> wire.Frame:
        return self._frame("mark", mark={"name": name})

    def clear(self) -> wire.Frame | None:
        return self._frame("clear")

    def _frame(self, kind: str, **fields: object) -> str:
        return wire.event(kind, streamSid=self._sid, **fields)


class Twilio:
    """How it rings, and what it is answered: each answer is a body in `media_type`.

    secret: the account's auth token, or what another carrier signs with. tells_call: a stream names
    the call as its ring does. announces: it says something to whoever takes a transferred call.
    signature, call_field, dialled_field, header_prefix: what others name otherwise.
    """

    name: ClassVar[str] = "twilio"
    media_type: ClassVar[str] = "text/xml"
    tells_call: ClassVar[bool] = True
    announces: ClassVar[bool] = True
    signature: ClassVar[str] = "x-twilio-signature"
    call_field: ClassVar[str] = "CallSid"
    dialled_field: ClassVar[str] = "DialCallStatus"
    header_prefix: ClassVar[str] = "SipHeader_"

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def prove(self, asked: wire.Asked) -> None:
        """Raises: Unproved."""
        check_twilio(self._secret, asked.headers.get(self.signature), asked.url, asked.fields)

    def prove_stream(self, asked: wire.Asked) -> None:
        """An upgrade, as far as the carrier signs it; the ticket follows. Raises: Unproved."""
        check_twilio(self._secret, asked.headers.get(self.signature), asked.url)

    def ring(self, asked: wire.Asked) -> PhoneCall:
        """Return who calls whom. Raises: InvalidRequest."""
        call_id = asked.get(self.call_field)
        if not call_id:
            raise expected(self.call_field, "the call's", None)
        start = self.header_prefix
        headers = {key[len(start) :]: value for key, value in asked.fields if key.startswith(start)}
        is_outbound = asked.get("Direction").startswith("outbound")
        caller, called = asked.get("From"), asked.get("To")
        return PhoneCall(self.name, caller, called, headers, call_id, is_outbound=is_outbound)

    def after(self, asked: wire.Asked) -> wire.Left | None:
        """Return what has become of the call; None: nothing follows yet. Raises: InvalidRequest."""
        how = asked.get(self.dialled_field)
        failed = "" if how in ANSWERED else how
        return wire.Left(self.ring(asked), asked.get("CallStatus") in LIVE, failed)

    def connect(self, call: PhoneCall, way: wire.Way) -> str:
        stream = f"<Stream url={quoteattr(way.stream)}>{parameter_of(way)}</Stream>"
        return twiml(f'<Connect action={quoteattr(way.after)} method="POST">{stream}</Connect>')

    def busy(self) -> str:
        return twiml('<Reject reason="busy"/>')

    def over(self) -> str:
        return twiml("<Hangup/>")

    def dial(self, call: PhoneCall, target: str, way: wire.Way) -> str:
        scheme, _, number = target.partition(":")
        first = f" url={quoteattr(way.announcement)}" if way.announcement else ""
        noun = self._number(number, first) if scheme == "tel" else self._address(target, first)
        return twiml(f'<Dial action={quoteattr(way.after)} method="POST">{noun}</Dial>')

    def _number(self, number: str, first: str) -> str:
        return f"<Number{first}>{escape(number)}</Number>"

    def _address(self, target: str, first: str) -> str:
        return f"<Sip{first}>{escape(target)}</Sip>"

    def say(self, text: str) -> str:
        return twiml(f"<Say>{escape(text)}</Say>")

    def stream(self) -> wire.Dialect:
        return TwilioStream()


class SignalWire(Twilio):
    """As `Twilio`, in cXML. secret: the project's signing key.

    Whether it signs the upgrade its pages do not say: there the ticket of the signed answer is the
    proof. Source: signalwire.com/docs/compatibility-api/cxml; /server-sdks, "Webhook signature".
    """

    name: ClassVar[str] = "signalwire"
    signature: ClassVar[str] = "x-signalwire-signature"

    def prove_stream(self, asked: wire.Asked) -> None:
        if self.signature in asked.headers:
            super().prove_stream(asked)


def twiml(verbs: str) -> str:
    return f'<?xml version="1.0" encoding="UTF-8"?><Response>{verbs}</Response>'


def parameter_of(way: wire.Way) -> str:
    return f"<Parameter name={quoteattr(wire.TICKET)} value={quoteattr(way.ticket)}/>"


def redirect_of(way: wire.Way) -> str:
    """Return what follows a stream, where the verb of the stream does not name it."""
    return f'<Redirect method="POST">{escape(way.after)}</Redirect>'
