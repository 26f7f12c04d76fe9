"""Who may come in: keys, client secrets and origins, decided before a connection is accepted.

Owns the comparison of keys (constant time, only digests kept) and where a client may put its key.
Pure: headers in, a typed error out. A key never appears in a message or a log.

A client secret is a short-lived key that a browser may hold, signed by the key that issued it. It
carries its own claims, so that every gateway that has the issuing key takes it, a restart ends
none, and none is worth more than its issuer: the session that it opens belongs to the issuer's
tenant. It is no secret from its holder: the page that has it can read the session it opens, as that
session's own ``session.created`` tells it anyway. A session too long for a header stays with the
gateway that issued it, which alone can open it.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import msgspec

from voiceloop.errors import ConfigError, Forbidden, Unauthorized
from voiceloop.realtime.settings import Json

REALTIME_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # a browser's WebSocket cannot set headers

PREFIX = "ek_"
MAC_BYTES = 24
# A browser sends it as a subprotocol, and servers read header lines of 8 KiB.
MAX_CARRIED_BYTES = 4096
MAX_VALUE_CHARACTERS = 8192
MAX_HELD_BYTES = 16 * 1024 * 1024  # of one issuer's sessions that are too long
PURPOSE = b"voiceloop client secret"


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


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """What a secret says; expires_at: epoch seconds; session None: its gateway holds it."""

    nonce: bytes
    expires_at: int
    session: Json | None
    max_session_s: int | None = None


class ClientSecret(msgspec.Struct, frozen=True):
    """A secret as it is handed out."""

    value: str
    expires_at: int

    def __repr__(self) -> str:
        return f"ClientSecret(expires_at={self.expires_at})"


class ClientSecrets:
    """Issues and reads secrets. keys: digests of the keys that may sign; now: epoch seconds."""

    def __init__(self, keys: Sequence[bytes], now: Callable[[], float]) -> None:
        self._keys = tuple(keys)
        self._now = now
        self._signing: dict[bytes, bytes] = {}
        self._held = {key: HeldSessions() for key in self._keys}

    def issue(
        self, issuer: bytes, seconds: int, session: Json, max_session_s: int | None = None
    ) -> ClientSecret:
        """A new secret of this key, usable as often as one likes until it expires."""
        nonce, expires_at = secrets.token_bytes(12), int(self._now()) + seconds
        body = _packed(Claims(nonce, expires_at, session, max_session_s))
        if len(body) > MAX_CARRIED_BYTES:
            self._held[issuer].put(nonce, msgspec.msgpack.encode(session), expires_at, self._now())
            body = _packed(Claims(nonce, expires_at, None, max_session_s))
        value = f"{PREFIX}{_text(body)}.{_text(self._mac(issuer, body))}"
        return ClientSecret(value, expires_at)

    def read(self, value: str) -> tuple[bytes, Claims]:
        """The digest of the key that issued it, and what it says, its session always there.

        Raises: Unauthorized; it does not say what is wrong.
        """
        wrong = Unauthorized("expected a valid client secret, found another or an old one")
        try:
            body, mac = map(_bytes, value.removeprefix(PREFIX)[:MAX_VALUE_CHARACTERS].split("."))
        except ValueError:
            raise wrong from None
        # All are compared, so that the time tells nothing about which one came close.
        issuers = [key for key in self._keys if hmac.compare_digest(self._mac(key, body), mac)]
        if not issuers:
            raise wrong
        claims = msgspec.msgpack.decode(zlib.decompress(body), type=Claims)
        if claims.expires_at <= self._now():
            raise wrong
        if claims.session is None:
            held = self._held[issuers[0]].get(claims.nonce)
            if held is None:
                raise wrong
            claims = msgspec.structs.replace(claims, session=msgspec.msgpack.decode(held))
        return issuers[0], claims

    def _mac(self, key: bytes, body: bytes) -> bytes:
        """With a key derived at some cost, once: who holds a secret may try to guess its issuer."""
        if key not in self._signing:
            self._signing[key] = hashlib.scrypt(key, salt=PURPOSE, n=2**14, r=8, p=1, dklen=32)
        return hmac.digest(self._signing[key], body, hashlib.sha256)[:MAC_BYTES]


class HeldSessions:
    """The sessions of one issuer that are too long to be carried, up to a number of bytes."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self._n_bytes = 0

    def get(self, nonce: bytes) -> bytes | None:
        held = self._sessions.get(nonce)
        return held[0] if held is not None else None

    def put(self, nonce: bytes, session: bytes, expires_at: int, now: float) -> None:
        """Hold one more; those that have expired make room, then the oldest."""
        for old in [one for one, (_, expires) in self._sessions.items() if expires <= now]:
            self._n_bytes -= len(self._sessions.pop(old)[0])
        self._sessions[nonce] = session, expires_at
        self._n_bytes += len(session)
        while self._n_bytes > MAX_HELD_BYTES:
            self._n_bytes -= len(self._sessions.popitem(last=False)[1][0])


def _packed(claims: Claims) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(claims), 9)


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Raises: ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


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
