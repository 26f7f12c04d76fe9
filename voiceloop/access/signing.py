"""Signs what a client keeps for the server, so that it comes back unchanged.

Owns the signature, and the text form of signed bytes. The holder can read what is signed. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable

MAC_BYTES = 24


class Signer:
    """Signs for one purpose, which is part of every signature: none is worth anything elsewhere.

    A key is secret, and of whatever length.
    """

    def __init__(self, purpose: bytes) -> None:
        self._purpose = purpose
        self._derived: dict[bytes, bytes] = {}

    def derive(self, keys: Iterable[bytes]) -> None:
        """Do the costly part ahead for these: some 50 ms a key, which a call would wait for.

        What was derived of others is forgotten. Beside the event loop.
        """
        self._derived = {key: self._of(key) for key in keys}

    def sign(self, key: bytes, body: bytes) -> bytes:
        """The signature, of `MAC_BYTES`."""
        return hmac.digest(self._of(key), body, hashlib.sha256)[:MAC_BYTES]

    def signed_by(self, keys: Iterable[bytes], body: bytes, mac: bytes) -> bytes | None:
        """The one of these keys that has signed this; None where none of them has."""
        # All are compared, so that the time tells nothing about which one came close.
        found = [key for key in keys if hmac.compare_digest(self.sign(key, body), mac)]
        return found[0] if found else None

    def _of(self, key: bytes) -> bytes:
        """A key derived at some cost, once: who holds a signature may try to guess what made it."""
        if key not in self._derived:
            self._derived[key] = hashlib.scrypt(
                key, salt=self._purpose, n=2**14, r=8, p=1, dklen=32
            )
        return self._derived[key]


class Salts:
    """Names of tenants for somebody else's service: nobody there learns whose they are.

    The same from restart to restart and on all servers with this secret, so that what the service
    has cached of a tenant stays of use; without one, of this process alone.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret or secrets.token_bytes(32)
        self._signer = Signer(b"voiceloop cache salt")
        self._signer.derive((self._secret,))

    def of(self, tenant: str) -> str:
        return to_text(self._signer.sign(self._secret, tenant.encode()))


def to_text(data: bytes) -> str:
    """As a URL and a subprotocol may hold it."""
    return urlsafe_b64encode(data).decode().rstrip("=")


def from_text(text: str) -> bytes:
    """Raises: ValueError."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def written(prefix: str, body: bytes, mac: bytes) -> str:
    """Return what is handed out: what was signed, and its signature."""
    return f"{prefix}{to_text(body)}.{to_text(mac)}"


def read(prefix: str, value: str, n_most: int) -> tuple[bytes, bytes]:
    """Return what was signed, and its signature, of a text as `written`. Raises: ValueError."""
    if not value.startswith(prefix) or len(value) > n_most:
        raise ValueError(f"expected {prefix} and at most {n_most} characters, found another text")
    body, mac = map(from_text, value.removeprefix(prefix).split("."))
    return body, mac


def unpacked(packed: bytes, n_most: int) -> bytes:
    """Return what zlib has packed, of at most so many bytes. Raises: ValueError."""
    unpacking = zlib.decompressobj()
    try:
        found = unpacking.decompress(packed, n_most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not unpacking.eof:
        raise ValueError(f"expected at most {n_most} bytes, packed whole; found something else")
    return found
