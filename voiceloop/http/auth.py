"""Who may come in: keys and origins, decided before a connection is accepted.

Owns the comparison of keys (constant time, only digests kept) and where a client may put its key.
Pure: headers in, a typed error out. A key never appears in a message or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from voiceloop.errors import ConfigError, Forbidden, Overloaded, Unauthorized
from voiceloop.realtime.settings import Json

REALTIME_SUBPROTOCOL = "realtime"
CLIENT_SECRET_PREFIX = "ek_"
MAX_CLIENT_SECRETS = 10_000
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # a browser's WebSocket cannot set headers


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """A short-lived key for a browser, and the session it opens. ``expires_at``: epoch seconds."""

    value: str = field(repr=False)
    expires_at: int
    session: Json


class KeyRing:
    """The keys that open the door. Without any, the door is open (loopback only, see below).

    ``now`` is epoch seconds. Client secrets live in memory: a restart ends them.
    """

    def __init__(self, keys: Iterable[str], now: Callable[[], float] = time.time) -> None:
        self._digests = tuple(_digest(key) for key in keys)
        self._secrets: dict[bytes, ClientSecret] = {}
        self._now = now

    @property
    def is_open(self) -> bool:
        """True when no keys are configured."""
        return not self._digests

    def check(self, key: str | None) -> Json:
        """The session that the key opens with: a client secret's own, else ``{}``.

        Raises:
            Unauthorized: the key is not one of ours or has expired; it does not say which.
        """
        if key is not None and key.startswith(CLIENT_SECRET_PREFIX):
            secret = self._secrets.get(_digest(key))
            if secret is None or secret.expires_at <= self._now():
                raise Unauthorized("expected a valid client secret, found another or an old one")
            return secret.session
        if not self.is_open:
            self.check_lasting(key)
        return {}

    def check_lasting(self, key: str | None) -> None:
        """As ``check``, for what a client secret does not open. Raises: Unauthorized."""
        if self.is_open:
            return
        if key is None:
            raise Unauthorized("expected an API key, found none")
        digest = _digest(key)
        # All are compared, so that the time tells nothing about which one came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("expected a valid API key, found another one")

    def issue(self, seconds: int, session: Json) -> ClientSecret:
        """A new client secret, usable until it expires.

        Raises:
            Overloaded: too many are alive.
        """
        now = self._now()
        self._secrets = {d: one for d, one in self._secrets.items() if one.expires_at > now}
        if len(self._secrets) >= MAX_CLIENT_SECRETS:
            raise Overloaded(f"expected at most {MAX_CLIENT_SECRETS} client secrets, found more")
        value = CLIENT_SECRET_PREFIX + secrets.token_urlsafe(24)
        secret = ClientSecret(value, int(now) + seconds, session)
        self._secrets[_digest(value)] = secret
        return secret


def client_key(headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> str | None:
    """The key a client sent: ``Authorization: Bearer``, ``api-key`` or a browser's subprotocol."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    if headers.get("api-key"):
        return headers["api-key"]
    for name in subprotocols:
        if name.startswith(KEY_SUBPROTOCOL) and len(name) > len(KEY_SUBPROTOCOL):
            return name[len(KEY_SUBPROTOCOL) :]
    return None


def tenant_of(key: str | None) -> str:
    """Whose conversations these are, as a name that tells nothing of the key."""
    return "" if key is None else _digest(key).hex()[:16]


def check_origin(headers: Mapping[str, str], allowed: Sequence[str], *, is_keyed: bool) -> None:
    """Keep other sites' pages out; CORS does not cover WebSockets.

    No ``Origin`` means no browser. The server's own origin and those listed pass. Without keys
    "own" must also be a loopback name: a hostile name that resolves to this machine would match
    its own Host header.

    Raises:
        Forbidden: the page comes from elsewhere.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed or "*" in allowed:
        return
    try:
        page = urlsplit(origin)
        own = urlsplit(f"//{headers.get('host', '')}")
        is_own = page.netloc.lower() == own.netloc.lower() != ""
        if is_own and (is_keyed or is_loopback(own.hostname or "")):
            return
    except ValueError:  # not an URL
        pass
    raise Forbidden(f"expected a request from an allowed origin, found {origin[:80]!r}")


def is_loopback(host: str) -> bool:
    """True for the names and addresses of this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_bind(host: str, *, is_keyed: bool, is_unauthenticated_allowed: bool) -> None:
    """Refuse to serve other machines without keys.

    Raises:
        ConfigError: the host is not loopback, there are no keys and nobody said that is meant.
    """
    if is_keyed or is_unauthenticated_allowed or is_loopback(host):
        return
    raise ConfigError(
        f"expected keys (keys_file or VOICELOOP_KEYS) to serve on {host!r}, found none; "
        "bind 127.0.0.1, or set allow_unauthenticated to let everybody in"
    )


def subprotocol(offered: Sequence[str]) -> str | None:
    """The subprotocol to select: ``realtime`` where offered, never the one with the key."""
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered else None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
