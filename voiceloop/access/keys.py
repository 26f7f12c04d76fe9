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
from voiceloop.access.signing import Salts, Signer
from voiceloop.errors import Forbidden, Unauthorized

TICKET_PURPOSE = b"voiceloop resume ticket"
SITE_PURPOSE = b"voiceloop site id"
REALTIME_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # a browser's WebSocket cannot set headers


@dataclass(frozen=True, slots=True)
class Entry:
    """The rights of a key: for whom, with which session, and for how long (None: the server's).

    secret: the id of the client secret, "" of a lasting key. lock, asserted, agent: as its
    `Claims`. agents: the names of those that the key opens; none: all.
    """

    tenant: str = ""
    session: Json = field(default_factory=dict)
    max_session_s: int | None = None
    secret: str = ""
    lock: tuple[str, ...] = ()
    asserted: Mapping[str, str] = field(default_factory=dict)
    agent: str = ""
    agents: tuple[str, ...] = ()

    def named(self, asked: str) -> str:
        """Return which agent the call is for, where the caller asks for this one; "": the server's
        first.

        Raises: Forbidden: the key opens others.
        """
        name = asked or next(iter(self._opened), "")
        if not self.opens(name):
            raise Forbidden(f"agent: expected one that the key opens, found {asked[:80]!r}")
        return name

    def opens(self, name: str) -> bool:
        """Whether the agent of this name answers whoever has the key."""
        return not self._opened or name in self._opened

    @property
    def _opened(self) -> tuple[str, ...]:
        return (self.agent,) if self.agent else self.agents


class KeyRing:
    """The keys that open the door. Without any, the door is open (loopback only, `origins`).

    keys: behind each, after a space, may stand the names of the agents that it opens, no others.

    shared: the secrets of the gateways that take over each other's calls; the first signs. now:
    epoch seconds. Where there is neither a key nor such a secret, what is signed ends with the
    process.
    """

    def __init__(
        self,
        keys: Sequence[str],
        now: Callable[[], float] = time.time,
        *,
        shared: Sequence[str] = (),
    ) -> None:
        self._agents: dict[str, tuple[str, ...]] = {}  # by tenant
        self._digests = self._read(keys)
        self._shared = tuple(_digest(secret) for secret in shared)
        # Signs where the door is open.
        self._own = self._shared[0] if shared else secrets.token_bytes(32)
        self.secrets = ClientSecrets(self._digests or (self._own,), now)
        self._tickets = Signer(TICKET_PURPOSE)
        self._sites = Signer(SITE_PURPOSE)

    def derive(self, keys: Sequence[str] = ()) -> None:
        """Do ahead what the first tickets and client secrets would wait for, beside the event loop.

        keys: that are to come as well.
        """
        digests = (*self._digests, *(_digest(key_of(one)) for one in keys)) or (self._own,)
        self.secrets.signer.derive(digests)
        self._tickets.derive(self._shared or digests)
        self._sites.derive(digests)

    def take(self, keys: Sequence[str]) -> frozenset[str]:
        """Take the only keys that open the door from now on; returns the tenants whose keys are
        gone.

        Raises: ValueError: there are none, with which the door would be open.
        """
        if not keys:
            raise ValueError("expected keys, found none")
        before, opened = self._digests, self._agents
        self._digests = self._read(keys)
        self.secrets.take(self._digests)
        gone = {_tenant(digest) for digest in before if digest not in self._digests}
        # One that opens less than it did is as good as gone for the calls that it has.
        changed = {tenant for tenant in opened | self._agents if self._is_less(tenant, opened)}
        return frozenset(gone | changed)

    def _read(self, keys: Sequence[str]) -> tuple[bytes, ...]:
        """Read the keys' digests; what each opens is noted."""
        read = [(_digest(key_of(one)), tuple(one.split()[1:])) for one in keys]
        self._agents = {_tenant(digest): agents for digest, agents in read if agents}
        return tuple(digest for digest, _ in read)

    def _is_less(self, tenant: str, before: Mapping[str, tuple[str, ...]]) -> bool:
        now, had = self._agents.get(tenant), before.get(tenant)
        return now is not None and (had is None or not set(had) <= set(now))

    def sign_ticket(self, tenant: str, body: bytes) -> bytes:
        """A ticket of this tenant's is signed by what gateways share, or by its own key."""
        return self._tickets.sign(self._of_tickets(tenant)[0], body)

    def has_signed_ticket(self, tenant: str, body: bytes, mac: bytes) -> bool:
        return self._tickets.signed_by(self._of_tickets(tenant), body, mac) is not None

    def _of_tickets(self, tenant: str) -> Sequence[bytes]:
        own = tuple(digest for digest in self._digests if _tenant(digest) == tenant)
        return self._shared or own or (self._own,)

    @property
    def is_open(self) -> bool:
        """True when no keys are configured."""
        return not self._digests

    def knows(self, tenant: str) -> bool:
        """Whether a key of this tenant's still opens the door."""
        return self.is_open or any(_tenant(digest) == tenant for digest in self._digests)

    def check(self, key: str | None) -> Entry:
        """Return what the key opens: of a client secret its own session, as its issuer's tenant.

        Raises:
            Unauthorized: the key is not one of ours or has expired; it does not say which.
        """
        if key is not None and key.startswith(PREFIX):
            issuer, claims = self.secrets.read(key)
            tenant = "" if issuer == self._own else _tenant(issuer)
            return Entry(
                tenant, claims.session or {}, claims.max_session_s, claims.nonce.hex(),
                claims.lock, claims.asserted, claims.agent, self._agents.get(tenant, ()),
            )  # fmt: skip
        if not self.is_open:
            self.check_lasting(key)
        tenant = tenant_of(key)
        return Entry(tenant, agents=self._agents.get(tenant, ()))

    def check_lasting(self, key: str | None) -> None:
        """As ``check``, for what a client secret does not open. Raises: Unauthorized."""
        if self.is_open:
            return
        if key is None:
            raise Unauthorized("No API key. Send one as Authorization: Bearer KEY.")
        digest = _digest(key)
        # All are compared, so that the time tells nothing about which one came close.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        if not any(matches):
            raise Unauthorized("Invalid API key. Check VOICELOOP_KEYS, or keys_file.")

    def issue(
        self,
        key: str | None,
        seconds: int,
        session: Json,
        max_session_s: int | None = None,
        lock: tuple[str, ...] = (),
        asserted: Mapping[str, str] | None = None,
        agent: str = "",
    ) -> ClientSecret:
        """A new client secret of a key that has been checked, usable until it expires."""
        issuer = self._issuer(key)
        return self.secrets.issue(issuer, seconds, session, max_session_s, lock, asserted, agent)

    def sign_site(self, key: str | None, body: bytes) -> bytes:
        """Sign by a key that has been checked: the site's id is good for as long as that is."""
        return self._sites.sign(self._issuer(key), body)

    def issuer_of_site(self, body: bytes, mac: bytes) -> bytes:
        """Return who has signed it, for ``secrets.issue``. Raises: Unauthorized: no key of ours."""
        issuer = self._sites.signed_by(self._digests or (self._own,), body, mac)
        if issuer is None:
            raise Unauthorized("This site id is of another server or of a removed key.")
        return issuer

    def _issuer(self, key: str | None) -> bytes:
        return self._own if self.is_open or key is None else _digest(key)


def salts(keys: Sequence[str], shared: Sequence[str]) -> Callable[[str], str]:
    """Return what tenants are called at somebody else's service, on all servers that are told the
    same.
    """
    digests = sorted(_digest(key_of(key)) for key in keys)
    secret = _digest(shared[0]) if shared else hashlib.sha256(b"".join(digests)).digest()
    return Salts(secret if shared or keys else b"").of


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
    """Compare in the same time whatever is found."""
    return found is not None and hmac.compare_digest(_digest(found), _digest(wanted))


def key_of(text: str) -> str:
    """The key alone, of a text that may name agents behind it."""
    return text.split()[0] if text.split() else text


def tenant_of(key: str | None) -> str:
    """Return whose conversations these are, as a name that tells nothing of the key."""
    return "" if key is None else _tenant(_digest(key))


def subprotocol(offered: Sequence[str]) -> str | None:
    """The subprotocol to select: ``realtime`` where offered, never the one with the key."""
    return REALTIME_SUBPROTOCOL if REALTIME_SUBPROTOCOL in offered else None


def _tenant(digest: bytes) -> str:
    return digest.hex()[:16]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
