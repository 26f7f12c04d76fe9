"""Who calls: by the address that a message comes from, or by a password it proves to know.

Owns the challenges, which nobody remembers: a nonce says when it was made and is signed. Pure.

Source: RFC 7616 and RFC 3261, 22; RFC 8760 (SHA-256).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network

from aiosipua.headers import parse_auth
from aiosipua.message import SipRequest

REALM = "voiceloop"
NONCE_S = 120.0  # from a challenge to its answer; a telephone asks again where that was too late
# Both are offered, the better first (RFC 8760, 2.3): exchanges that know only MD5 take the second.
HASHES: dict[str, Callable[[bytes], hashlib._Hash]] = {
    "SHA-256": hashlib.sha256,
    "MD5": hashlib.md5,
}


class Challenges:
    """Of one gateway. users: passwords by name. clock: monotonic, in seconds."""

    def __init__(self, users: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._users = users
        self._clock = clock
        self._secret = secrets.token_bytes(32)

    def headers(self, host: str) -> list[str]:
        """What asks this host for its name and password, one for each hash."""
        nonce = self._nonce(f"{self._clock():.0f}", host)
        return [
            f'Digest realm="{REALM}", nonce="{nonce}", algorithm={name}, qop="auth"'
            for name in HASHES
        ]

    def user_of(self, request: SipRequest, host: str) -> str | None:
        """The user who proves a password; None: nobody does, or too late."""
        for value in request.headers.get("authorization")[:4]:
            given = parse_auth(value, credentials=True).params
            if given.get("realm") == REALM and self._is_right(given, request.method, host):
                return given["username"]
        return None

    def _is_right(self, given: Mapping[str, str], method: str, host: str) -> bool:
        made = HASHES.get(given.get("algorithm", "MD5").upper())
        password = self._users.get(given.get("username", ""))
        if made is None or password is None or not self._is_ours(given.get("nonce", ""), host):
            return False

        def hashed(*parts: str) -> str:
            return made(":".join(parts).encode()).hexdigest()

        secret = hashed(given["username"], REALM, password)
        middle = [given["nonce"]]
        if given.get("qop") == "auth":
            middle += [given.get("nc", ""), given.get("cnonce", ""), "auth"]
        wanted = hashed(secret, *middle, hashed(method, given.get("uri", "")))
        return hmac.compare_digest(wanted.encode(), given.get("response", "").encode())

    def _is_ours(self, nonce: str, host: str) -> bool:
        at, _, _ = nonce.partition(".")
        is_signed = hmac.compare_digest(nonce.encode(), self._nonce(at, host).encode())
        return is_signed and self._clock() - float(at) < NONCE_S

    def _nonce(self, at: str, host: str) -> str:
        signature = hmac.new(self._secret, f"{at} {host}".encode(), hashlib.sha256)
        return f"{at}.{signature.hexdigest()[:32]}"


def is_among(host: str, networks: Sequence[str]) -> bool:
    """Whether the address is of one of these networks."""
    address = ip_address(host.partition("%")[0])
    return any(address in ip_network(one, strict=False) for one in networks)
