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

from voiceloop.errors import ConfigError, Forbidden, Unauthorized
from voiceloop.http.client_secrets import PREFIX, ClientSecret, ClientSecrets
from voiceloop.realtime.settings import Json

REALTIME_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # a browser's WebSocket cannot set headers


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key opens: for whom, with which session, and for how long (None: the server's)."""

    tenant: str = ""
    session: Json = field(default_factory=dict)
    max_session_s: int | None = None


class KeyRing:
    """The keys that open the door. Without any, the door is open (loopback only, see below).

    ``now`` is epoch seconds. Where there are no keys, client secrets end with the process.
    """

    def __init__(self, keys: Iterable[str], now: Callable[[], float] = time.time) -> None:
        self._digests = tuple(_digest(key) for key in keys)
        self._own = secrets.token_bytes(32)  # signs where the door is open
        self._secrets = ClientSecrets(self._digests or (self._own,), now)

    @property
    def is_open(self) -> bool:
        """True when no keys are configured."""
        return not self._digests

    def check(self, key: str | None) -> Entry:
        """What the key opens: of a client secret its own session, as its issuer's tenant.

        Raises:
            Unauthorized: the key is not one of ours or has expired; it does not say which.
        """
        if key is not None and key.startswith(PREFIX):
            issuer, claims = self._secrets.read(key)
            tenant = "" if issuer == self._own else _tenant(issuer)
            return Entry(tenant, claims.session or {}, claims.max_session_s)
        if not self.is_open:
            self.check_lasting(key)
        return Entry(tenant_of(key))

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

    def issue(
        self, key: str | None, seconds: int, session: Json, max_session_s: int | None = None
    ) -> ClientSecret:
        """A new client secret of a key that has been checked, usable until it expires."""
        issuer = self._own if self.is_open or key is None else _digest(key)
        return self._secrets.issue(issuer, seconds, session, max_session_s)


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
    return "" if key is None else _tenant(_digest(key))


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


def _tenant(digest: bytes) -> str:
    return digest.hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
