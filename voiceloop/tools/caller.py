"""The caller for whom a tool is called: what the door knows, and nothing that a model wrote.

Owns its form for a tool, and the signature by which a service knows that it comes from here. Pure:
time is passed in.
"""

from __future__ import annotations

import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from voiceloop.config_reader import from_environment
from voiceloop.errors import ConfigError

LEAST_KEY_CHARS = 16  # a shorter one is found by trying


@dataclass(frozen=True, slots=True)
class Caller:
    """key: which of the server's keys opened the call, by a name that tells nothing of it.

    secret: the id of the client secret, where one did. number: of a telephone. claims: what the
    back end that had the secret made says of its holder. call: the session's id.
    """

    key: str = ""
    secret: str = ""
    number: str = field(default="", repr=False)
    claims: Mapping[str, str] = field(default_factory=dict, repr=False)
    call: str = ""

    def told(self) -> dict[str, Any]:
        """As a tool is told."""
        return {
            "key": self.key, "secret": self.secret, "number": self.number,
            "claims": dict(self.claims), "call": self.call,
        }  # fmt: skip


NOBODY = Caller()


class CallerSigner:
    """Signs for one service. key: shared with that service, and with no other."""

    def __init__(self, key: str, environment: Mapping[str, str], where: str) -> None:
        """Raises: ConfigError: the key names a variable that is not set, or is too short."""
        self._key = from_environment(key, environment, where).encode()
        if len(self._key) < LEAST_KEY_CHARS:
            least = f"at least {LEAST_KEY_CHARS} characters"
            raise ConfigError(f"{where}: caller_key: expected {least}, found fewer")

    def signed(self, caller: Caller, tool: str, now_s: float) -> str:
        """``BODY.MAC``: JSON in URL-safe base64, and the HMAC-SHA256 of that text in hex.

        tool: the call's. now_s: since the epoch, so that a service may refuse an old one.
        """
        said = json.dumps({**caller.told(), "tool": tool, "at": int(now_s)})
        body = urlsafe_b64encode(said.encode())
        return f"{body.decode()}.{hmac.new(self._key, body, 'sha256').hexdigest()}"
