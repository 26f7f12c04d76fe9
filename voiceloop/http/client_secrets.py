"""Client secrets: short-lived keys that a browser may hold, signed by the key that issued them.

Owns what a secret says and how it is read. It carries its own claims, so that every gateway that
has the issuing key takes it, a restart ends none, and none is worth more than its issuer: the
session that it opens belongs to the issuer's tenant, and no key opens it longer than the issuer's.
A secret is no secret from its holder: the page that has it can read the session it opens, as that
session's own ``session.created`` tells it anyway. Pure: the clock is passed in.

A session too long for a header stays with the gateway that issued it, which alone can open it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from voiceloop.errors import Unauthorized
from voiceloop.realtime.settings import Json

PREFIX = "ek_"
MAC_BYTES = 24
# A browser sends it as a subprotocol, and servers read header lines of 8 KiB.
MAX_CARRIED_BYTES = 4096
MAX_VALUE_CHARACTERS = 8192
MAX_HELD_BYTES = 16 * 1024 * 1024  # of the sessions that are too long; the oldest go first
PURPOSE = b"voiceloop client secret"


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
        self._held: OrderedDict[bytes, bytes] = OrderedDict()
        self._n_held = 0

    def issue(
        self, issuer: bytes, seconds: int, session: Json, max_session_s: int | None = None
    ) -> ClientSecret:
        """A new secret of this key, usable as often as one likes until it expires."""
        nonce, expires_at = secrets.token_bytes(12), int(self._now()) + seconds
        body = _packed(Claims(nonce, expires_at, session, max_session_s))
        if len(body) > MAX_CARRIED_BYTES:
            self._hold(nonce, msgspec.msgpack.encode(session))
            body = _packed(Claims(nonce, expires_at, None, max_session_s))
        value = f"{PREFIX}{_text(body)}.{_text(_mac(issuer, body))}"
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
        issuers = [key for key in self._keys if hmac.compare_digest(_mac(key, body), mac)]
        if not issuers:
            raise wrong
        claims = msgspec.msgpack.decode(zlib.decompress(body), type=Claims)
        if claims.expires_at <= self._now():
            raise wrong
        if claims.session is None:
            held = self._held.get(claims.nonce)
            if held is None:
                raise wrong
            claims = msgspec.structs.replace(claims, session=msgspec.msgpack.decode(held))
        return issuers[0], claims

    def _hold(self, nonce: bytes, session: bytes) -> None:
        self._held[nonce] = session
        self._n_held += len(session)
        while self._n_held > MAX_HELD_BYTES:
            self._n_held -= len(self._held.popitem(last=False)[1])


def _packed(claims: Claims) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(claims), 9)


def _mac(key: bytes, body: bytes) -> bytes:
    signing = hmac.digest(key, PURPOSE, hashlib.sha256)  # the key's digest is the tenant's name too
    return hmac.digest(signing, body, hashlib.sha256)[:MAC_BYTES]


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    """Raises: ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
