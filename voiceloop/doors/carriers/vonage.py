"""Vonage: call control objects as answers, and a WebSocket of plain samples. Pure.

Sound is binary, 16 bits little-endian; texts are events and commands.
Source: developer.vonage.com, "WebSockets in the Vonage Voice API"; NCCO reference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.carriers.signatures import check_vonage
from voiceloop.errors import expected
from voiceloop.telephony import PhoneCall

RATE_HZ = 16_000
CONTENT_TYPE = f"audio/l16;rate={RATE_HZ}"
CALL = "call"  # the header beside the ticket: a stream does not name its call by itself
FAILED = ("busy", "timeout", "failed", "rejected", "unanswered", "cancelled")
OVER = ("completed", *FAILED)


class VonageStream(wire.Dialect):
    """As `Dialect`. Its marks are notifications."""

    def read(self, frame: wire.Frame) -> wire.Incoming | None:
        if isinstance(frame, bytes):
            return wire.plain_sound(frame)
        told = wire.object_of(frame)
        match told.get("event"):
            case "websocket:notify":
                return wire.Played(wire.text_at(told, "payload", "mark"))
            case "websocket:dtmf":
                digit = told.get("dtmf") or told
                return wire.Pressed(wire.text_at(digit, "digit"))
            case "websocket:connected":
                content = wire.text_at(told, "content-type").replace(" ", "").lower()
                if content != CONTENT_TYPE:
                    raise expected("content-type", CONTENT_TYPE, content)
                call, ticket = wire.text_at(told, CALL), wire.text_at(told, wire.TICKET)
                return wire.Started(call, ticket, encoding="pcm16", rate_hz=RATE_HZ)
        return None

    def media(self, payload: bytes) -> wire.Frame:
        return payload

    def mark(self, name: str) -> wire.Frame:
        return json.dumps({"action": "notify", "payload": {"mark": name}})

    def clear(self) -> wire.Frame | None:
        return '{"action":"clear"}'


class Vonage:
    """As `Twilio`. secret: the account's signature secret. The answer's URL has to be a POST: of
    a GET only the path would be signed.
    """

    name: ClassVar[str] = "vonage"
    media_type: ClassVar[str] = "application/json"
    tells_call: ClassVar[bool] = True
    announces: ClassVar[bool] = False

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def prove(self, asked: wire.Asked) -> None:
        check_vonage(self._secret, asked.headers.get("authorization"), asked.body, asked.now_s)

    def prove_stream(self, asked: wire.Asked) -> None: ...

    def ring(self, asked: wire.Asked) -> PhoneCall:
        told = wire.object_of(asked.body.decode("utf-8", "replace"))
        # Each leg has a `uuid`; what they share names the call.
        call_id = wire.text_at(told, "conversation_uuid")
        if not call_id:
            raise expected("conversation_uuid", "the call's", None)
        start = "SipHeader_"
        headers = {n[len(start) :]: wire.text_at(told, n) for n in told if n.startswith(start)}
        caller = wire.text_at(told, "from") or wire.text_at(told, "from_user")
        return PhoneCall(self.name, caller, wire.text_at(told, "to"), headers, call_id)

    def after(self, asked: wire.Asked) -> wire.Left | None:
        """Each leg tells of its state: the first to be over is the stream, or who was dialled."""
        told = wire.object_of(asked.body.decode("utf-8", "replace"))
        status = wire.text_at(told, "status")
        if status not in OVER:
            return None
        return wire.Left(self.ring(asked), True, status if status in FAILED else "")

    def connect(self, call: PhoneCall, way: wire.Way) -> str:
        return _ncco({
            "action": "connect",
            "eventType": "synchronous",
            "eventUrl": [way.after],
            "endpoint": [{
                "type": "websocket",
                "uri": way.stream,
                "content-type": CONTENT_TYPE,
                "headers": {wire.TICKET: way.ticket, CALL: call.id},
            }],
        })  # fmt: skip

    def busy(self) -> str:
        return _ncco()

    def over(self) -> str:
        return _ncco()

    def dial(self, call: PhoneCall, target: str, way: wire.Way) -> str:
        scheme, _, number = target.partition(":")
        endpoint = {"type": "sip", "uri": target}
        if scheme == "tel":
            endpoint = {"type": "phone", "number": number.removeprefix("+")}
        asked = {"eventType": "synchronous", "eventUrl": [way.after], "endpoint": [endpoint]}
        return _ncco({"action": "connect", **asked})

    def say(self, text: str) -> str:
        return _ncco({"action": "talk", "text": text})

    def stream(self) -> wire.Dialect:
        return VonageStream()


def _ncco(*actions: Mapping[str, object]) -> str:
    return json.dumps(actions)
