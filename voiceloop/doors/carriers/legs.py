"""The calls of carriers, from their ring to their end: tickets, and what follows a stream. Pure.

Owns who may open a stream: whoever shows the ticket of a ring that was proved, once, within 30 s,
for the call that it was given for. Time is passed in.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import Enum

from voiceloop.errors import NotOnThisLine, Unproved
from voiceloop.telephony import Announcement, PhoneCall

TICKET_S = 30.0
MOST_LEGS = 1024  # the oldest that has no stream gives way
MOST_STREAMS = 4  # of one call: its first, and those after a broken line or a failed transfer


class LegState(Enum):
    RINGING = "ringing"  # it has a ticket
    STREAMING = "streaming"
    AWAY = "away"  # the stream broke, or the caller is about to be transferred
    DIALLED = "dialled"  # the caller is being transferred, or has been
    OVER = "over"  # remembered, so that its ring is not played again


@dataclass(slots=True)
class Leg:
    """One call of a carrier. resume, returns: of the session, to go on with it in another stream.

    target: where the caller is to be connected, until that is done; announcement: what is said
    there first.
    """

    call: PhoneCall
    state: LegState = LegState.RINGING
    ticket: str = field(default="", repr=False)
    expires_s: float = 0.0
    resume: str = field(default="", repr=False)
    returns: str = field(default="", repr=False)
    target: str = ""
    announcement: str = field(default="", repr=False)
    n_streams: int = 0

    @property
    def may_return(self) -> bool:
        """A carrier may know before us that a stream broke."""
        is_begun = self.state in (LegState.AWAY, LegState.STREAMING, LegState.DIALLED)
        return is_begun and self.n_streams < MOST_STREAMS


@dataclass(frozen=True, slots=True)
class LegStream:
    """One stream of a leg. number: of it, until a later one takes its place.

    announces: whether the far end says something to whoever takes a transferred call.
    """

    leg: Leg
    number: int
    announces: bool = False

    def keep(self, ticket: str, returns: str) -> None:
        """Keep the call under this ticket, by which it could go on over another stream."""
        if self.number == self.leg.n_streams:
            self.leg.resume, self.leg.returns = ticket, returns

    def send_away(self, target: str, announcement: Announcement | None) -> None:
        """Have the caller connected there once the stream is over. Raises: NotOnThisLine."""
        if announcement is not None and not self.announces:
            raise NotOnThisLine("This line cannot announce a caller. Transfer without `warm`.")
        self.leg.target = target
        self.leg.announcement = "" if announcement is None else announcement.text

    def end(self, *, is_over: bool) -> None:
        """The stream ends; is_over: and with it the call."""
        if self.number == self.leg.n_streams and self.leg.state is LegState.STREAMING:
            self.leg.state = LegState.OVER if is_over else LegState.AWAY


class Legs:
    """The legs of one carrier at one gateway, by the carrier's id of the call."""

    def __init__(self) -> None:
        self._legs: dict[str, Leg] = {}

    def ring(self, call: PhoneCall, now_s: float) -> Leg:
        """A proved ring: the call has a ticket. A carrier may ring again until a stream is open.

        Raises: Unproved: the call has had its stream, and somebody plays its ring again.
        """
        known = self._legs.get(call.id)
        if known is not None and known.state is not LegState.RINGING:
            raise Unproved("This call rang before, and has begun.")
        return self._admit(Leg(call), now_s)

    def find(self, call_id: str) -> Leg | None:
        return self._legs.get(call_id)

    def again(self, leg: Leg, call: PhoneCall, now_s: float) -> Leg:
        """The caller of a leg that is away comes back: it has another ticket."""
        leg.call, leg.state = call, LegState.RINGING
        return self._admit(leg, now_s)

    def take(self, ticket: str, call_id: str | None, now_s: float) -> Leg:
        """The leg whose stream opens. call_id: as the stream names the call; None: it does not.

        Raises: Unproved: no such ticket, or it was used, is too old, or is another call's.
        """
        leg = self._with_ticket(ticket) if call_id is None else self._legs.get(call_id)
        if leg is None or not leg.ticket or leg.state is not LegState.RINGING:
            raise Unproved("No call rings for this stream.")
        if not _is_same(leg.ticket, ticket):
            raise Unproved("The ticket of this stream is not the call's.")
        leg.ticket = ""
        if now_s > leg.expires_s:
            raise Unproved(f"The ticket of this stream is older than {TICKET_S:g} s.")
        leg.state = LegState.STREAMING
        leg.n_streams += 1
        return leg

    def _with_ticket(self, ticket: str) -> Leg | None:
        known = (leg for leg in self._legs.values() if leg.ticket)
        return next((leg for leg in known if _is_same(leg.ticket, ticket)), None)

    def _admit(self, leg: Leg, now_s: float) -> Leg:
        leg.ticket, leg.expires_s = secrets.token_urlsafe(24), now_s + TICKET_S
        self._legs.pop(leg.call.id, None)
        if len(self._legs) >= MOST_LEGS:
            idle = (key for key, one in self._legs.items() if one.state is not LegState.STREAMING)
            self._legs.pop(next(idle), None)
        self._legs[leg.call.id] = leg
        return leg


def _is_same(ticket: str, found: str) -> bool:
    """Compare in constant time; a stranger's text may hold what no encoding has."""
    return secrets.compare_digest(ticket.encode(), found.encode("utf-8", "replace"))
