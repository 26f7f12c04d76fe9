"""Issues and checks client secrets: short-lived keys that a browser may hold.

The key that issues a secret signs it, and the secret carries its own claims. So every gateway that
has the issuing key takes it, a restart ends none, and the session that it opens belongs to the
issuer's tenant. Its holder can read it: the page learns nothing that ``session.created`` does not
say. What that never says (a token or headers for an MCP server) is not in it: such a session, and
one too long for a header, stays with the gateway that issued it, which alone can open it. Pure:
time is passed in.
"""

from __future__ import annotations

import secrets
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from voiceloop.access.signing import Signer, read, unpacked, written
from voiceloop.errors import Unauthorized

Json = dict[str, Any]

PREFIX = "ek_"
# A browser sends it as a subprotocol, and servers read header lines of 8 KiB.
MAX_CARRIED_BYTES = 4096
MAX_VALUE_CHARACTERS = 8192
MAX_UNPACKED_BYTES = 1024 * 1024  # its session has been accepted in a body of 512 KiB at most
MAX_HELD_BYTES = 16 * 1024 * 1024  # of one issuer's sessions that are not carried
PURPOSE = b"voiceloop client secret"
CREDENTIALS = ("authorization", "headers")  # of an MCP server among the tools


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """The contents of a secret; expires_at: epoch seconds; session None: its gateway holds it.

    lock: what its holder may not change. asserted: what the issuer says of its holder. agent: the
    one that answers its holder, of several.
    """

    nonce: bytes
    expires_at: int
    session: Json | None
    max_session_s: int | None = None
    lock: tuple[str, ...] = ()
    asserted: dict[str, str] = {}
    agent: str = ""


class ClientSecret(msgspec.Struct, frozen=True):
    """A secret as it is handed out."""

    value: str
    expires_at: int

    def __repr__(self) -> str:
        return f"ClientSecret(expires_at={self.expires_at})"


class ClientSecrets:
    """Issues and reads secrets. keys: digests of the keys that may sign; now: epoch seconds."""

    def __init__(self, keys: Sequence[bytes], now: Callable[[], float]) -> None:
        self.signer = Signer(PURPOSE)
        self._now = now
        self._held = {key: HeldSessions() for key in keys}

    def take(self, keys: Sequence[bytes]) -> None:
        """Take the keys that may sign from now on; what one of them issued before is good as it
        was.
        """
        self._held = {key: self._held.get(key) or HeldSessions() for key in keys}

    def issue(
        self,
        issuer: bytes,
        seconds: int,
        session: Json,
        max_session_s: int | None = None,
        lock: tuple[str, ...] = (),
        asserted: Mapping[str, str] | None = None,
        agent: str = "",
    ) -> ClientSecret:
        """A new secret of this key, usable as often as one likes until it expires."""
        nonce, expires_at = secrets.token_bytes(12), int(self._now()) + seconds
        told = dict(asserted or {})
        claims = Claims(nonce, expires_at, session, max_session_s, lock, told, agent)
        body = _packed(claims)
        if _names_credentials(session) or len(body) > MAX_CARRIED_BYTES:
            self._held[issuer].put(nonce, msgspec.msgpack.encode(session), expires_at, self._now())
            body = _packed(msgspec.structs.replace(claims, session=None))
        return ClientSecret(written(PREFIX, body, self.signer.sign(issuer, body)), expires_at)

    def read(self, value: str) -> tuple[bytes, Claims]:
        """The digest of the key that issued it, and what it says, its session always there.

        Raises: Unauthorized; it does not say what is wrong.
        """
        wrong = Unauthorized("This client secret is wrong or has expired. Ask for a new one.")
        try:
            body, mac = read(PREFIX, value, MAX_VALUE_CHARACTERS)
        except ValueError:
            raise wrong from None
        issuer = self.signer.signed_by(self._held, body, mac)
        if issuer is None:
            raise wrong
        try:
            claims = msgspec.msgpack.decode(unpacked(body, MAX_UNPACKED_BYTES), type=Claims)
        except (ValueError, msgspec.DecodeError):
            raise wrong from None
        if claims.expires_at <= self._now():
            raise wrong
        if claims.session is None:
            held = self._held[issuer].get(claims.nonce)
            if held is None:
                raise wrong
            claims = msgspec.structs.replace(claims, session=msgspec.msgpack.decode(held))
        return issuer, claims


class HeldSessions:
    """The sessions of one issuer that no secret carries, up to a number of bytes."""

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


def _names_credentials(session: Json) -> bool:
    """Whether one of its tools comes with what its server wants to see."""
    tools = session.get("tools")
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return any(tool.get(key) for tool in named for key in CREDENTIALS)


def _packed(claims: Claims) -> bytes:
    return zlib.compress(msgspec.msgpack.encode(claims), 9)
