"""The table `[phone]` of a server's configuration: which carriers and exchanges reach it, and how.

Owns these keys. A carrier is served once its table has a secret; without one its route is not
there, and nothing of it is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from voiceloop import day_hours
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
class PhoneNumber:
    """What differs for calls to one of our numbers."""

    number: str = key(..., "The number that is called, as the carrier writes it.", pattern=".+")
    agent: str = key("", "The agent that answers, of those of `serve --agents`. Empty: the first.")
    greeting: str = key("", "Said instead of the agent's greeting.")
    session: Mapping[str, Any] = key(
        {},
        "Session settings, as a client secret carries them: `instructions`, `audio`, `tools` and so"
        " on.",
    )


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
    transfer_to: tuple[str, ...] = key(
        (),
        "Where calls may be transferred, as `tel:+4930*` or `sip:*@pbx.example.com`; `*` stands for"
        " any run of characters but `@`, `;`, `?` and `,`. Empty: only where the agent's "
        "`[[transfers]]` lead.",
    )
    answer: Literal["at_once", "ask"] = key(
        "at_once",
        "Whether a call is answered, or `phone.webhook_url` is asked first and the call rings until"
        " `accept` or `reject`.",
    )
    webhook_url: str = key(
        "",
        "Told of each call that rings (`realtime.call.incoming`), where `phone.answer` is `ask`. "
        "It has to be https; no redirect is followed.",
        pattern=r"(https://[^\s]+)?",
        wanted="https://",
    )
    webhook_secret: str = key(
        "",
        "Signs what the webhook is told, as `whsec_...`: the stock SDKs' `webhooks.unwrap` takes "
        "it. At least 16 characters.",
        secret=True,
    )
    ring_ms: int = key(
        0,
        "How long a call rings before it is answered at once; where it is asked for, a call rings "
        "for 30 s at most.",
        ge=0,
        le=20_000,
    )
    max_calls: int = key(20, "Calls at once to one number.", ge=0, le=100_000, zero="no limit")
    max_minutes: int = key(30, "The longest call, in minutes.", ge=1, le=1440)
    calls_an_hour: int = key(
        0,
        "Calls of one caller in an hour; a withheld number is not counted.",
        ge=0,
        le=100_000,
        zero="no limit",
    )
    minutes_a_day: int = key(
        0, "Minutes of one caller in a day.", ge=0, le=100_000, zero="no limit"
    )
    outbound_a_day: int = key(
        100, "Calls that this server places in a day.", ge=0, le=100_000, zero="no limit"
    )
    quiet_hours: str = key(
        "",
        "When this server places no calls, by its own clock, as `21:00-08:00`.",
        pattern=day_hours.PATTERN,
        wanted=day_hours.WANTED,
    )
    silence_s: int = key(
        10,
        "The silence after which a caller is asked whether they are there (`call.still_there`). "
        "Two more of it end the call.",
        ge=0,
        le=600,
        zero="never",
    )
    number: tuple[PhoneNumber, ...] = key(
        (), "What differs for single numbers, each a `[[phone.number]]`, see below."
    )
    twilio: TwilioSettings = field(default_factory=TwilioSettings)
    signalwire: SignalWireSettings = field(default_factory=SignalWireSettings)
    telnyx: TelnyxSettings = field(default_factory=TelnyxSettings)
    plivo: PlivoSettings = field(default_factory=PlivoSettings)
    vonage: VonageSettings = field(default_factory=VonageSettings)
    asterisk: AsteriskSettings = field(default_factory=AsteriskSettings)
    audiosocket: AudioSocketSettings = field(default_factory=AudioSocketSettings)

    @property
    def rings(self) -> bool:
        """Whether a call rings before it is answered."""
        return self.answer == "ask" or self.ring_ms > 0

    def of(self, called: str) -> PhoneNumber | None:
        """What differs for calls to this number."""
        return next((one for one in self.number if one.number == called), None)

    def allows(self, target: str) -> bool:
        """Whether one of the patterns is that of a target; where there are none: no."""
        return is_within(target, self.transfer_to)

    def allows_of_file(self, target: str) -> bool:
        """Whether a transfer that an agent's file names may go there."""
        return not self.transfer_to or self.allows(target)

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


def is_within(target: str, patterns: Iterable[str]) -> bool:
    """Whether a target is of one of these patterns, in which `*` stands for no `@`, `;`, `?`, `,`:
    with these a target could name another host behind the one that is allowed.
    """
    return any(_pattern(one).fullmatch(target) for one in patterns)


def _pattern(text: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in text.split("*"))
    return re.compile("[^@;?,]*".join(parts), re.IGNORECASE)
