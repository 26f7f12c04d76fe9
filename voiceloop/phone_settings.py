"""The table `[phone]` of a server's configuration: which carriers and exchanges reach it, and how.

Owns these keys. A carrier or an exchange is served once its secret is here; without one its route
is not there, and nothing of it is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from voiceloop import day_hours
from voiceloop.config_reader import key

CARRIERS = ("twilio", "signalwire", "telnyx", "plivo", "vonage")
EXCHANGES = ("asterisk", "audiosocket")
WEBHOOK = "webhook"


@dataclass(frozen=True, slots=True)
class PhoneNumber:
    """Settings that differ for calls to one of our numbers."""

    number: str = key(..., "The number that is called, as the carrier writes it.", pattern=".+")
    agent: str = key(
        "", "The agent that answers, by its name in `serve --agents`. Empty: the first."
    )
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
        "Where calls may be transferred, as `tel:+4930*` or `sip:*@pbx.example.com`; `*` "
        "stands for any run of characters but `@`, `;`, `?` and `,`. Empty: only the targets "
        "of the agent's `[[transfers]]`.",
    )
    webhook_url: str = key(
        "",
        "Asked about each call (`realtime.call.incoming`), which rings until `accept` or `reject`, "
        "30 s at most. It has to be https; no redirect is followed. `webhook` of "
        "`phone.secrets` signs the events. Empty: calls are answered at once.",
        pattern=r"(https://[^\s]+)?",
        wanted="https://",
    )
    max_calls: int = key(20, "Calls at once to one number.", ge=0, le=100_000, zero="no limit")
    calls_an_hour: int = key(
        0,
        "Calls of one caller in an hour; a withheld number is not counted.",
        ge=0,
        le=100_000,
        zero="no limit",
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
    number: tuple[PhoneNumber, ...] = key(
        (), "What differs for single numbers, each a `[[phone.number]]`, see below."
    )
    secrets: Mapping[str, Any] = key(
        {},
        "The secret of each carrier and exchange that may send calls, as "
        '`twilio = "${TWILIO_TOKEN}"`. They are `twilio`, `signalwire`, `telnyx`, `plivo`, '
        "`vonage`, `asterisk` and `audiosocket`; [PHONE.md](PHONE.md#carriers) says which secret "
        "each has. With it `/v1/phone/NAME` is served. `webhook` signs the events to "
        "`webhook_url`, as `whsec_...`, with 16 characters or more: the stock SDKs' "
        "`webhooks.unwrap` takes it. A value may name variables of the environment as `${NAME}`.",
        secret=True,
    )
    audiosocket_at: str = key(
        "127.0.0.1:9092",
        "The address and TCP port of AudioSocket. It has to be a private one, or this "
        "machine's. The port opens when the server hands out the first UUID.",
        pattern=r"\S+:[1-9]\d{0,4}",
        wanted="HOST:PORT",
    )

    def of(self, called: str) -> PhoneNumber | None:
        """Return what differs for calls to this number."""
        return next((one for one in self.number if one.number == called), None)

    def allows(self, target: str) -> bool:
        """Whether one of the patterns is that of a target; where there are none: no."""
        return is_within(target, self.transfer_to)

    def allows_of_file(self, target: str) -> bool:
        """Whether a transfer that an agent's file names may go there."""
        return not self.transfer_to or self.allows(target)

    @property
    def carriers(self) -> Mapping[str, str]:
        """Return the carriers that are served, with their secrets. They ask this server over
        HTTP, and so sign an address of it.
        """
        return {name: secret for name, secret in self.secrets.items() if name in CARRIERS}

    @property
    def audiosocket_address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.audiosocket_at.rpartition(":")
        return host.strip("[]"), int(port)


def is_within(target: str, patterns: Iterable[str]) -> bool:
    """Whether a target is of one of these patterns, in which `*` stands for no `@`, `;`, `?`, `,`:
    with these a target could name another host behind the one that is allowed.
    """
    return any(_pattern(one).fullmatch(target) for one in patterns)


def _pattern(text: str) -> re.Pattern[str]:
    parts = (re.escape(part) for part in text.split("*"))
    return re.compile("[^@;?,]*".join(parts), re.IGNORECASE)
