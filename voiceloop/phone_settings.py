"""The table `[phone]` of a server's configuration: which carriers and exchanges reach it, and how.

Owns these keys. A carrier is served once its table has a secret; without one its route is not
there, and nothing of it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from voiceloop.config_reader import key


@dataclass(frozen=True, slots=True)
class TwilioSettings:
    """Calls over Twilio."""

    token: str = key(
        "",
        "The account's auth token, by which Twilio signs what it sends. With it "
        "`POST /v1/phone/twilio` is served.",
        secret=True,
    )
    account: str = key(
        "", "The account's SID, `AC...`. Calls of another account are refused. Empty: of any."
    )


@dataclass(frozen=True, slots=True)
class SignalWireSettings:
    """Calls over SignalWire."""

    signing_key: str = key(
        "",
        "The project's signing key. With it `POST /v1/phone/signalwire` is served.",
        secret=True,
    )
    project: str = key("", "The project's id. Calls of another project are refused. Empty: of any.")


@dataclass(frozen=True, slots=True)
class TelnyxSettings:
    """Calls over Telnyx."""

    public_key: str = key(
        "",
        "The account's public key, base64, by which webhooks are checked. With it "
        "`POST /v1/phone/telnyx` is served, for a TeXML application.",
        pattern=r"([A-Za-z0-9+/]{43}=)?",
        wanted="an Ed25519 key in base64",
    )
    stream_token: str = key(
        "",
        "The `stream_auth_token` of an application of your own that streams calls here. It names "
        "`/v1/phone/telnyx/stream`. Empty: only calls that this server has answered.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class PlivoSettings:
    """Calls over Plivo."""

    token: str = key(
        "",
        "The account's auth token. With it `POST /v1/phone/plivo` is served.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class VonageSettings:
    """Calls over Vonage."""

    secret: str = key(
        "",
        "The account's signature secret. With it `POST /v1/phone/vonage` is served, the answer URL "
        "of a voice application with signed webhooks.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class AsteriskSettings:
    """Calls over Asterisk's WebSocket channel."""

    password: str = key(
        "",
        "The password in Asterisk's `websocket_client.conf`. With it the WebSocket "
        "`/v1/phone/asterisk/stream` is served.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class AudioSocketSettings:
    """Calls over AudioSocket, which has neither keys nor encryption."""

    password: str = key(
        "",
        "The password with which a dial plan asks `POST /v1/phone/audiosocket` for a call's UUID. "
        "With it AudioSocket is served.",
        secret=True,
    )
    host: str = key(
        "127.0.0.1", "The address of its TCP port. It has to be a private one, or this machine's."
    )
    port: int = key(9092, "Its TCP port. It opens with the first UUID.", ge=1, le=65535)


@dataclass(frozen=True, slots=True)
class PhoneSettings:
    """How telephones reach the server."""

    public_url: str = key(
        "",
        "Where carriers reach this server, as `https://voice.example.com`. Signatures are "
        "checked over this address, never over what a header says.",
        pattern=r"(https?://[^/?#\s]+)?",
        wanted="https://HOST or https://HOST:PORT",
    )
    headers: tuple[str, ...] = key(
        (),
        "Headers of a call that its agent and tools may know, as `X-Order`. All others are "
        "dropped.",
    )
    twilio: TwilioSettings = field(default_factory=TwilioSettings)
    signalwire: SignalWireSettings = field(default_factory=SignalWireSettings)
    telnyx: TelnyxSettings = field(default_factory=TelnyxSettings)
    plivo: PlivoSettings = field(default_factory=PlivoSettings)
    vonage: VonageSettings = field(default_factory=VonageSettings)
    asterisk: AsteriskSettings = field(default_factory=AsteriskSettings)
    audiosocket: AudioSocketSettings = field(default_factory=AudioSocketSettings)

    @property
    def is_called_back(self) -> bool:
        """Whether a carrier asks this server over HTTP, and so signs an address of it."""
        return any((
            self.twilio.token, self.signalwire.signing_key, self.telnyx.public_key,
            self.plivo.token, self.vonage.secret,
        ))  # fmt: skip

    @property
    def is_dialled(self) -> bool:
        """Whether a carrier or an exchange reaches this server over a stream."""
        return self.is_called_back or any((self.asterisk.password, self.audiosocket.password))
