"""Checks API keys: where a client puts one, and which tenant each stands for.

Owns the comparison of keys (constant time, only digests kept). Pure: headers in, a typed error out.
A key never appears in a message or a log.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from voiceloop.access.client_secrets import PREFIX, ClientSecret, ClientSecrets, Json
from voiceloop.access.signing import Salts
from voiceloop.errors import Unauthorized

REALTIME_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # a browser's WebSocket cannot set headers


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key opens: for whom, with which session, and for how long (None: the server's).

    secret: the id of the client secret, "" of a lasting key. lock, asserted: as its `Claims`.
    """

    tenant: str = ""
    session: Json = field(default_factory=dict)
    max_session_s: int | None = None
    secret: str = ""
    lock: tuple[str, ...] = ()
    asserted: Mapping[str, str] = field(default_factory=dict)


class KeyRing:
    """The keys that open the door. Without any, the door is open (loopback only, `origins`).

    secret_key: what the gateways that take over each other's calls have in common. now: epoch
    seconds. Where there is neither a key nor that, what is signed ends with the process.
    """

    def __init__(
        self, keys: Sequence[str], now: Callable[[], float] = time.time, *, secret_key: str = ""
    ) -> None:
        self._digests = tuple(_digest(key) for key in keys)
        # Signs where the door is open.
        self._own = _digest(secret_key) if secret_key else secrets.token_bytes(32)
        self._secrets = ClientSecrets(self._digests or (self._own,), now)
        self.shared_secret = shared_secret(keys, secret_key) or self._own

    def derive(self) -> None:
        """Do ahead what the first client secrets would wait for."""
        self._secrets.signer.derive()

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
            return Entry(
                tenant, claims.session or {}, claims.max_session_s, claims.nonce.hex(),
                claims.lock, claims.asserted,
            )  # fmt: skip
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
        self,
        key: str | None,
        seconds: int,
        session: Json,
        max_session_s: int | None = None,
        lock: tuple[str, ...] = (),
        asserted: Mapping[str, str] | None = None,
    ) -> ClientSecret:
        """A new client secret of a key that has been checked, usable until it expires."""
        issuer = self._own if self.is_open or key is None else _digest(key)
        return self._secrets.issue(issuer, seconds, session, max_session_s, lock, asserted)


def shared_secret(keys: Sequence[str], secret_key: str) -> bytes:
    """What servers have in common that are told the same; nothing where they are told neither."""
    if secret_key:
        return _digest(secret_key)
    digests = sorted(_digest(key) for key in keys)
    return hashlib.sha256(b"".join(digests)).digest() if digests else b""


def salts(keys: Sequence[str], secret_key: str) -> Callable[[str], str]:
    """What tenants are called at somebody else's service, on all servers that are told the same."""
    return Salts(shared_secret(keys, secret_key)).of


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


def is_same_key(found: str | None, wanted: str) -> bool:
    """In the same time whatever is found."""
    return found is not None and hmac.compare_digest(_digest(found), _digest(wanted))


def tenant_of(key: str | None) -> str:
    """Whose conversations these are, as a name that tells nothing of the key."""
    return "" if key is None else _tenant(_digest(key))


def subprotocol(offered: Sequence[str]) -> str | None:
    """The subprotocol to select: ``realtime`` where offered, never the one with the key."""
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered else None


def _tenant(digest: bytes) -> str:
    return digest.hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
