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

    @property
    def is_called_back(self) -> bool:
        """Whether a carrier asks this server over HTTP, and so signs an address of it."""
        return bool(self.twilio.token)
