"""What a carrier or an exchange says and hears over its stream, as its documents write it.

One class for each dialect: the frames that begin a stream, a frame of the caller, a key, and
what a frame of the server is. They share no code with the dialects of the server.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from audio.codec import Encoding

TOKEN = "a token of twenty characters"
CALLER, CALLED = "+4915112345678", "+493012345678"
Frame = str | bytes


@dataclass(frozen=True, slots=True)
class Told:
    """A frame of the server's: `media` with its payload, `mark` with its name, `clear`, `digits`,
    or `hang_up`."""

    kind: str
    payload: bytes = b""
    name: str = ""


@dataclass(slots=True)
class TwilioPeer:
    """Twilio, and what the others change of it. call: its id of the call."""

    name = "twilio"
    encoding: Encoding = "pcmu"
    rate_hz = 8000
    call: str = field(default_factory=lambda: f"CA{uuid.uuid4().hex}")
    account = "AC00000000000000000000000000000001"
    stream = "MZ00000000000000000000000000000001"
    n_sent: int = 0

    # --- over HTTP ---

    def ring(self, url: str, path: str = "", **more: str) -> tuple[bytes, dict[str, str]]:
        """The body of a ring, or of another request about the call, and its headers."""
        fields = {
            "CallSid": self.call, "AccountSid": self.account, "From": CALLER, "To": CALLED,
            "CallStatus": "ringing", "Direction": "inbound", **more,
        }  # fmt: skip
        body = "&".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return body.encode(), {**headers, **self.signed(url + path, fields)}

    def signed(self, url: str, fields: Mapping[str, str]) -> dict[str, str]:
        text = url + "".join(name + fields[name] for name in sorted(fields))
        mac = hmac.new(TOKEN.encode(), text.encode(), hashlib.sha1).digest()
        return {f"x-{self.name}-signature": base64.b64encode(mac).decode()}

    def stream_of(self, answer: str) -> tuple[str, str]:
        """The address of the stream in an answer, and the ticket; "" where there is none."""
        root = ElementTree.fromstring(answer)
        stream = root.find(".//Stream")
        if stream is None:
            return "", ""
        parameter = stream.find("Parameter")
        return stream.get("url", ""), "" if parameter is None else parameter.get("value", "")

    def upgrade(self, url: str) -> dict[str, str]:
        """The headers of the upgrade."""
        return self.signed(url, {})

    # --- over the stream ---

    def opening(self, ticket: str) -> Sequence[Frame]:
        start = {
            "streamSid": self.stream, "accountSid": self.account, "callSid": self.call,
            "tracks": ["inbound"], "customParameters": {"ticket": ticket},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }  # fmt: skip
        connected = {"event": "connected", "protocol": "Call", "version": "1.0.0"}
        return json.dumps(connected), self._event("start", start=start)

    def sound(self, payload: bytes) -> Frame:
        self.n_sent += 1
        media = {
            "track": "inbound", "chunk": str(self.n_sent), "timestamp": str(20 * self.n_sent),
            "payload": base64.b64encode(payload).decode(),
        }  # fmt: skip
        return self._event("media", media=media)

    def digit(self, key: str) -> Frame:
        return self._event("dtmf", dtmf={"track": "inbound_track", "digit": key})

    def played(self, name: str) -> Frame | None:
        return self._event("mark", mark={"name": name})

    returns_cleared_marks = True
    most_held = 1 << 20  # pieces: a carrier plays all that it was sent

    def stop(self) -> Frame:
        return self._event("stop", stop={"callSid": self.call})

    def told(self, frame: Frame) -> Told:
        event = json.loads(frame)
        match event["event"]:
            case "media":
                return Told("media", base64.b64decode(event["media"]["payload"]))
            case "mark":
                return Told("mark", name=event["mark"]["name"])
        return Told(event["event"])

    def _event(self, kind: str, **fields: Any) -> str:
        named = {"sequenceNumber": str(self.n_sent + 2), "streamSid": self.stream}
        return json.dumps({"event": kind, **named, **fields})


class SignalWirePeer(TwilioPeer):
    name = "signalwire"


@dataclass(slots=True)
class TelnyxPeer(TwilioPeer):
    """Two of its frames change places each second, as nobody promises their order."""

    name = "telnyx"
    held: list[str] = field(default_factory=list)
    private_key: Any = None

    def signed(self, url: str, fields: Mapping[str, str]) -> dict[str, str]:
        return {}

    def ring(self, url: str, path: str = "", **more: str) -> tuple[bytes, dict[str, str]]:
        body, headers = TwilioPeer.ring(self, url, path, **more)
        at = str(int(time.time()))
        mac = base64.b64encode(self.private_key.sign(f"{at}|".encode() + body)).decode()
        return body, {**headers, "telnyx-timestamp": at, "telnyx-signature-ed25519": mac}

    def opening(self, ticket: str) -> Sequence[Frame]:
        start = {
            "call_control_id": "v3:another-id", "user_id": self.account, "from": CALLER,
            "to": CALLED, "custom_parameters": {"ticket": ticket},
            "media_format": {"encoding": "PCMU", "sample_rate": 8000, "channels": 1},
        }  # fmt: skip
        return '{"event":"connected","version":"1.0.0"}', self._event("start", start=start)

    def _event(self, kind: str, **fields: Any) -> str:
        named = {"sequence_number": str(self.n_sent + 2), "stream_id": self.stream}
        return json.dumps({"event": kind, **named, **fields})


@dataclass(slots=True)
class PlivoPeer(TwilioPeer):
    name = "plivo"
    nonce = "05429567804466091622"

    def ring(self, url: str, path: str = "", **more: str) -> tuple[bytes, dict[str, str]]:
        fields = {
            "CallUUID": self.call, "From": CALLER, "To": CALLED, "CallStatus": "ringing", **more,
        }  # fmt: skip
        body = "&".join(f"{name}={_quoted(value)}" for name, value in fields.items())
        text = f"{url}{path}?" + "".join(name + fields[name] for name in sorted(fields))
        mac = hmac.new(TOKEN.encode(), f"{text}.{self.nonce}".encode(), hashlib.sha256).digest()
        return body.encode(), {
            "content-type": "application/x-www-form-urlencoded",
            "x-plivo-signature-v3": base64.b64encode(mac).decode(),
            "x-plivo-signature-v3-nonce": self.nonce,
        }

    def stream_of(self, answer: str) -> tuple[str, str]:
        stream = ElementTree.fromstring(answer).find("Stream")
        if stream is None:
            return "", ""
        return stream.text or "", stream.get("extraHeaders", "").partition("=")[2]

    def upgrade(self, url: str) -> dict[str, str]:
        return {}

    def opening(self, ticket: str) -> Sequence[Frame]:
        start = {
            "callId": self.call, "streamId": self.stream, "accountId": self.account,
            "tracks": ["inbound"],
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000},
        }  # fmt: skip
        return (
            json.dumps({
                "event": "start", "sequenceNumber": 1, "start": start,
                "extra_headers": f"ticket={ticket}",
            }),
        )  # fmt: skip

    def played(self, name: str) -> Frame | None:
        return json.dumps({"event": "playedStream", "streamId": self.stream, "name": name})

    returns_cleared_marks = False

    def told(self, frame: Frame) -> Told:
        event = json.loads(frame)
        match event["event"]:
            case "playAudio":
                return Told("media", base64.b64decode(event["media"]["payload"]))
            case "checkpoint":
                return Told("mark", name=event["name"])
            case "clearAudio":
                return Told("clear")
        return Told(event["event"], name=event.get("dtmf", ""))


@dataclass(slots=True)
class VonagePeer(TwilioPeer):
    name = "vonage"
    encoding: Encoding = "pcm16"
    rate_hz = 16_000
    returns_cleared_marks = False

    def ring(self, url: str, path: str = "", **more: str) -> tuple[bytes, dict[str, str]]:
        told = {"uuid": str(uuid.uuid4()), "conversation_uuid": self.call}
        body = json.dumps({**told, "from": CALLER, "to": CALLED, **more}).encode()
        claims = {
            "iat": int(time.time()), "jti": str(uuid.uuid4()), "iss": "Vonage",
            "payload_hash": hashlib.sha256(body).hexdigest(),
        }  # fmt: skip
        parts = [_part({"alg": "HS256", "typ": "JWT"}), _part(claims)]
        mac = hmac.new(TOKEN.encode(), ".".join(parts).encode(), hashlib.sha256).digest()
        token = ".".join([*parts, base64.urlsafe_b64encode(mac).rstrip(b"=").decode()])
        return body, {"content-type": "application/json", "authorization": f"Bearer {token}"}

    def stream_of(self, answer: str) -> tuple[str, str]:
        actions = json.loads(answer)
        endpoint = actions[0]["endpoint"][0] if actions else {}
        return endpoint.get("uri", ""), endpoint.get("headers", {}).get("ticket", "")

    def upgrade(self, url: str) -> dict[str, str]:
        return {}

    def opening(self, ticket: str) -> Sequence[Frame]:
        kind = {"event": "websocket:connected", "content-type": "audio/l16;rate=16000"}
        return (json.dumps({**kind, "ticket": ticket, "call": self.call}),)

    def sound(self, payload: bytes) -> Frame:
        return payload

    def digit(self, key: str) -> Frame:
        return json.dumps({"event": "websocket:dtmf", "digit": key, "duration": 260})

    def played(self, name: str) -> Frame | None:
        return json.dumps({"event": "websocket:notify", "payload": {"mark": name}})

    def told(self, frame: Frame) -> Told:
        if isinstance(frame, bytes):
            return Told("media", frame)
        command = json.loads(frame)
        if command["action"] == "notify":
            return Told("mark", name=command["payload"]["mark"])
        return Told(command["action"])


@dataclass(slots=True)
class AsteriskPeer(TwilioPeer):
    """An unbuffered `chan_websocket` with slin16; its first sound comes before `MEDIA_START`."""

    name = "asterisk"
    most_held = 5  # it passes sound on to a telephone, whose jitter buffer holds no more than that
    encoding: Encoding = "pcm16"
    rate_hz = 16_000
    password = TOKEN

    def upgrade(self, url: str) -> dict[str, str]:
        named = base64.b64encode(f"voiceloop:{self.password}".encode()).decode()
        return {"authorization": f"Basic {named}"}

    def opening(self, ticket: str) -> Sequence[Frame]:
        start = {
            "event": "MEDIA_START", "connection_id": "voiceloop", "channel": "WebSocket/voiceloop",
            "channel_id": "1761245643.1", "format": "slin16", "optimal_frame_size": 640,
            "ptime": 20, "unbuffered": True, "channel_variables": {},
        }  # fmt: skip
        return bytes(640), json.dumps(start)

    def sound(self, payload: bytes) -> Frame:
        return payload

    def digit(self, key: str) -> Frame:
        return json.dumps({"event": "DTMF_END", "channel_id": "1761245643.1", "digit": key})

    def played(self, name: str) -> Frame | None:
        return None

    def told(self, frame: Frame) -> Told:
        if isinstance(frame, bytes):
            if len(frame) != 640:
                raise AssertionError(f"expected whole frames of 640 bytes, found {len(frame)}")
            return Told("media", frame)
        return Told({"HANGUP": "hang_up"}.get(json.loads(frame)["command"], frame))


@dataclass(slots=True)
class AudioSocketPeer(AsteriskPeer):
    name = "audiosocket"
    rate_hz = 8000

    def opening(self, ticket: str) -> Sequence[Frame]:
        return (b"\x01\x00\x10" + uuid.UUID(ticket).bytes,)

    def sound(self, payload: bytes) -> Frame:
        return b"\x10" + len(payload).to_bytes(2, "big") + payload

    def digit(self, key: str) -> Frame:
        return b"\x03\x00\x01" + key.encode()

    def told(self, frame: Frame) -> Told:
        assert isinstance(frame, bytes)
        return Told("media", frame[3:]) if frame[0] == 0x10 else Told("hang_up")


@dataclass(slots=True)
class SipPeer(AsteriskPeer):
    """G.711 in packets; what its frames are is `sip_line.SipStream`'s."""

    name = "sip"
    encoding: Encoding = "pcmu"
    rate_hz = 8000

    def told(self, frame: Frame) -> Told:
        assert isinstance(frame, bytes)
        return Told("media", frame)


PEERS: dict[str, type[TwilioPeer]] = {
    one.name: one
    for one in (
        TwilioPeer, SignalWirePeer, TelnyxPeer, PlivoPeer, VonagePeer, AsteriskPeer,
        AudioSocketPeer, SipPeer,
    )
}  # fmt: skip


def _quoted(text: str) -> str:
    from urllib.parse import quote_plus

    return quote_plus(text)


def _part(told: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(told).encode()).rstrip(b"=").decode()
