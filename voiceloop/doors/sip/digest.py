"""The identity of a SIP caller: by the address that a message comes from, or by a password it
proves to know.

Owns the challenges, which nobody remembers: a nonce says when it was made and is signed. What is
remembered is which proofs have been shown. Pure.

Source: RFC 7616 and RFC 3261, 22; RFC 8760 (SHA-256).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network

from aiosipua.headers import parse_auth, parse_uri
from aiosipua.message import SipRequest

REALM = "voiceloop"
NONCE_S = 120.0  # from a challenge to its answer; a telephone asks again where that was too late
MAX_SHOWN = 4096  # proofs that are remembered; those who may call make 30 calls a second at most
NC = re.compile(r"[0-9a-f]{8}", re.IGNORECASE)
# Both are offered, the better first (RFC 8760, 2.3): exchanges that know only MD5 take the second.
HASHES: dict[str, Callable[[bytes], hashlib._Hash]] = {
    "SHA-256": hashlib.sha256,
    "MD5": hashlib.md5,
}


class Challenges:
    """The challenges of one gateway. users: passwords by name. clock: monotonic, in seconds."""

    def __init__(self, users: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._users = users
        self._clock = clock
        self._secret = secrets.token_bytes(32)
        self._shown: OrderedDict[str, int] = OrderedDict()  # by nonce, how often it has proved

    def headers(self, request: SipRequest, host: str) -> list[str]:
        """Return what asks this host for its name and password, one for each hash.

        A right password with a nonce that is spent is called stale (RFC 7616, 3.3): a telephone
        then asks nobody for another one.
        """
        nonce = self._nonce(f"{self._clock():.0f}.{secrets.token_hex(8)}", host)
        stale = ", stale=true" if any(self._proofs(request)) else ""
        return [
            f'Digest realm="{REALM}", nonce="{nonce}", algorithm={name}, qop="auth"{stale}'
            for name in HASHES
        ]

    def user_of(self, request: SipRequest, host: str) -> str | None:
        """The user who proves a password; None: nobody does, or too late."""
        for given in self._proofs(request):
            if self._is_ours(given["nonce"], host) and self._is_new(given):
                return given["username"]
        return None

    def _proofs(self, request: SipRequest) -> Iterator[Mapping[str, str]]:
        """Yield the proofs that hold a right password, whatever became of their nonce."""
        for value in request.headers.get("authorization")[:4]:
            given = parse_auth(value, credentials=True).params
            if (
                given.get("realm") == REALM
                and _names_same(given.get("uri", ""), request.uri)
                and self._is_right(given, request.method)
            ):
                yield given

    def _is_right(self, given: Mapping[str, str], method: str) -> bool:
        made = HASHES.get(given.get("algorithm", "MD5").upper())
        password = self._users.get(given.get("username", ""))
        if made is None or password is None or "nonce" not in given:
            return False

        def hashed(*parts: str) -> str:
            return made(":".join(parts).encode()).hexdigest()

        secret = hashed(given["username"], REALM, password)
        middle = [given["nonce"]]
        if given.get("qop") == "auth":
            if not NC.fullmatch(given.get("nc", "")):
                return False
            middle += [given.get("nc", ""), given.get("cnonce", ""), "auth"]
        wanted = hashed(secret, *middle, hashed(method, given.get("uri", "")))
        return hmac.compare_digest(wanted.encode(), given.get("response", "").encode())

    def _is_new(self, given: Mapping[str, str]) -> bool:
        """Whether this proof was not shown before: each of a nonce counts higher (RFC 7616, 3.4).

        One without a count is good once.
        """
        nonce, n_shown = given["nonce"], 1
        if given.get("qop") == "auth":
            n_shown = int(given["nc"], 16)
        if n_shown <= self._shown.get(nonce, 0):
            return False
        self._shown[nonce] = n_shown
        self._shown.move_to_end(nonce)
        if len(self._shown) > MAX_SHOWN:
            self._shown.popitem(last=False)
        return True

    def _is_ours(self, nonce: str, host: str) -> bool:
        made, _, _ = nonce.rpartition(".")
        is_signed = hmac.compare_digest(nonce.encode(), self._nonce(made, host).encode())
        return is_signed and self._clock() - float(made.partition(".")[0]) < NONCE_S

    def _nonce(self, made: str, host: str) -> str:
        """made: when, and a number of its own."""
        signature = hmac.new(self._secret, f"{made} {host}".encode(), hashlib.sha256)
        return f"{made}.{signature.hexdigest()[:32]}"


def _names_same(proved: str, asked: str) -> bool:
    """Whether the proof is for who is called; a proxy may have written another host (RFC 3261)."""
    try:
        return parse_uri(proved).user == parse_uri(asked).user
    except ValueError:
        return False


def is_among(host: str, networks: Sequence[str]) -> bool:
    """Whether the address is of one of these networks."""
    address = ip_address(host.partition("%")[0])
    return any(address in ip_network(one, strict=False) for one in networks)
