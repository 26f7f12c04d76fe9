"""Signs and checks tickets: a client goes on with its call by one, on any connection or server.

Owns the tickets of one server. A ticket is a snapshot behind a short head: which call, valid until
when, and how long the call has lasted. Both are signed, for one tenant. The head alone is enough at
the door, where a caller who comes back has a place kept. One server resumes a call once: it refuses
a second ticket of the call, and the same one as soon as more has been said, because a line may
break before its client has another. Pure: time is passed in.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from voiceloop.access.signing import from_text, read, to_text, written
from voiceloop.errors import InvalidRequest, Overloaded
from voiceloop.resume.snapshot import (
    MAX_PACKED_BYTES,
    Snapshot,
    pack,
    unpack,
    unreadable,
)

PREFIX = "rt_"
FOREIGN = "The ticket is of another server, or was changed."
# Whoever loses the line has so long to come back, at whatever moment it broke: a ticket is sent
# again each time that REFRESH_S have passed.
RESUMABLE_S = 60
REFRESH_S = 15
DIGEST_BYTES = 16
MAX_CHARACTERS = MAX_PACKED_BYTES * 4 // 3 + 1024
MAX_HEAD_CHARACTERS = 1024
# Calls that were resumed here, each for as long as a ticket of it may be good. More in a minute
# than any one server takes.
MAX_REMEMBERED = 65_536


class Claims(msgspec.Struct, frozen=True, array_like=True):
    """A ticket's head. expires_at: epoch seconds; lived_s: of all the call's connections; agent:
    of several, as the call asked for it.
    """

    call_id: str
    expires_at: int
    lived_s: int
    digest: bytes
    agent: str = ""


@dataclass(frozen=True, slots=True)
class Ticket:
    """As it is handed out. head: what of it is enough at the door."""

    value: str
    head: str
    expires_at: int

    def __repr__(self) -> str:
        return f"Ticket(expires_at={self.expires_at})"


class Once:
    """Names that count once, for as long as they may be shown; now: seconds."""

    def __init__(self, now: Callable[[], float], kept_s: float) -> None:
        self._now = now
        self._kept_s = kept_s
        self._taken: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # oldest first

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def is_open(self, name: str, by: bytes) -> bool:
        """Whether whoever shows this may take it: the first, and the same until it is settled."""
        return name not in self._taken or self._taken[name][1] == by

    def take(self, name: str, by: bytes = b"") -> None:
        """Raises: Overloaded: more have been taken than can be remembered."""
        while self._taken and next(iter(self._taken.values()))[0] <= self._now() - self._kept_s:
            self._taken.popitem(last=False)
        self._taken.pop(name, None)
        if len(self._taken) >= MAX_REMEMBERED:
            raise Overloaded(
                f"This server has resumed {MAX_REMEMBERED} calls, which is its limit for now."
            )
        self._taken[name] = self._now(), by

    def settle(self, name: str) -> None:
        """Settle the ticket: from now on nobody may take it again."""
        if name in self._taken:
            self._taken[name] = self._taken[name][0], b""


class TicketKeys(Protocol):
    """Sign for a tenant, and tell what was signed so, here or on another server."""

    def sign_ticket(self, tenant: str, body: bytes) -> bytes: ...

    def has_signed_ticket(self, tenant: str, body: bytes, mac: bytes) -> bool: ...


class Tickets:
    """The tickets of one server. keys: alike on all that resume each other's calls; now: epoch."""

    def __init__(self, keys: TicketKeys, now: Callable[[], float]) -> None:
        self._keys = keys
        self._now = now
        # Tickets of a call may be issued elsewhere until it is resumed, and are good for a while.
        kept_s = 2.0 * (RESUMABLE_S + REFRESH_S)
        self._returned = Once(now, kept_s)
        self._resumed = Once(now, kept_s)

    def issue(
        self, tenant: str, call_id: str, lived_s: float, snapshot: Snapshot, agent: str = ""
    ) -> Ticket:
        """Raises: InvalidRequest: the call's settings are too long for one."""
        body = pack(snapshot)
        expires_at = int(self._now()) + RESUMABLE_S + REFRESH_S
        claims = Claims(call_id, expires_at, int(lived_s), _digest(body), agent)
        packed = msgspec.msgpack.encode(claims)
        mac = self._keys.sign_ticket(tenant, _bound(tenant, packed))
        head = written(PREFIX, packed, mac)
        return Ticket(f"{head}.{to_text(body)}", head, expires_at)

    def knows(self, head: str, tenant: str) -> bool:
        """Whether this is the head of a ticket with which nobody has been let in yet."""
        try:
            return self._claims(head, tenant).call_id not in self._returned
        except InvalidRequest:
            return False

    def let_in(self, head: str, tenant: str) -> None:
        """Let its caller in: the head counts once. One that is not known is ignored."""
        if self.knows(head, tenant):
            self._returned.take(self._claims(head, tenant).call_id)

    def read(self, value: str, tenant: str) -> tuple[Claims, Snapshot]:
        """Return what a ticket says that is good.

        Raises:
            InvalidRequest: it is too long, not signed by us for this tenant, too old
                (``resume_ticket_expired``) or of a call that was resumed here
                (``resume_ticket_used``).
        """
        if len(value) > MAX_CHARACTERS:
            raise _refused(
                "resume_ticket_invalid", f"The ticket has more than {MAX_CHARACTERS} characters."
            )
        head, _, carried = value.rpartition(".")
        claims = self._claims(head, tenant)
        try:
            body = from_text(carried)
        except ValueError:
            raise unreadable("no base64") from None
        if _digest(body) != claims.digest:
            raise _refused("resume_ticket_invalid", FOREIGN)
        if not self._resumed.is_open(claims.call_id, claims.digest):
            raise _refused(
                "resume_ticket_used",
                "This call was resumed already, by this ticket or a newer one.",
            )
        return claims, unpack(body)

    def use(self, claims: Claims) -> None:
        """The call goes on here: of its tickets this one alone is good. Raises: Overloaded.

        The line may break before its client has been told.
        """
        self._resumed.take(claims.call_id, claims.digest)

    def settle(self, claims: Claims) -> None:
        """More was said in the call that goes on here: this ticket is not good any more either."""
        self._resumed.settle(claims.call_id)

    def _claims(self, head: str, tenant: str) -> Claims:
        """Raises: InvalidRequest."""
        wrong = _refused("resume_ticket_invalid", FOREIGN)
        try:
            packed, mac = read(PREFIX, head, MAX_HEAD_CHARACTERS)
        except ValueError:
            raise wrong from None
        if not self._keys.has_signed_ticket(tenant, _bound(tenant, packed), mac):
            raise wrong
        try:
            claims = msgspec.msgpack.decode(packed, type=Claims)
        except (msgspec.DecodeError, UnicodeError):
            raise unreadable("a head of another form") from None
        if claims.expires_at <= self._now():
            raise _refused(
                "resume_ticket_expired", f"The ticket is older than {RESUMABLE_S + REFRESH_S} s."
            )
        return claims


def _bound(tenant: str, packed: bytes) -> bytes:
    return tenant.encode() + b"\0" + packed


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:DIGEST_BYTES]


def _refused(code: str, told: str) -> InvalidRequest:
    return InvalidRequest(told, param="ticket", code=code)
