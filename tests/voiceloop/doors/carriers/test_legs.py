"""Who may open a stream, and when a caller comes back."""

from __future__ import annotations

import pytest

from voiceloop.doors.carriers.legs import (
    MOST_LEGS,
    MOST_STREAMS,
    TICKET_S,
    Legs,
    LegState,
    LegStream,
)
from voiceloop.errors import Unproved
from voiceloop.telephony import PhoneCall


def call(name: str = "CA1") -> PhoneCall:
    return PhoneCall("twilio", id=name)


def test_a_ticket_is_good_once_for_its_call_and_for_thirty_seconds() -> None:
    legs = Legs()
    leg, other = legs.ring(call(), 0.0), legs.ring(call("CA2"), 0.0)
    for ticket, name, now_s in (
        (leg.ticket, "CA2", 1.0), (leg.ticket, "CA3", 1.0), ("", "CA1", 1.0), ("é", "CA1", 1.0),
    ):  # fmt: skip
        with pytest.raises(Unproved):
            legs.take(ticket, name, now_s)
    ticket = leg.ticket
    assert legs.take(ticket, "CA1", TICKET_S) is leg
    with pytest.raises(Unproved):
        legs.take(ticket, "CA1", 1.0)
    with pytest.raises(Unproved):
        legs.take(other.ticket, None, TICKET_S + 0.1)
    legs.ring(call("CA4"), 0.0)
    for stranger in ("", "é", "\ud800"):
        with pytest.raises(Unproved):
            legs.take(stranger, None, 1.0)
        with pytest.raises(Unproved):
            legs.take(stranger, "CA4", 1.0)


def test_a_carrier_may_ring_again_until_the_stream_is_open() -> None:
    legs = Legs()
    first = legs.ring(call(), 0.0).ticket
    second = legs.ring(call(), 1.0).ticket
    with pytest.raises(Unproved):
        legs.take(first, "CA1", 1.0)
    legs.take(second, "CA1", 1.0)
    with pytest.raises(Unproved):
        legs.ring(call(), 2.0)


def test_the_end_of_an_older_stream_does_not_end_the_one_that_took_its_place() -> None:
    legs = Legs()
    leg = legs.ring(call(), 0.0)
    legs.take(leg.ticket, "CA1", 0.0)
    older = LegStream(leg, leg.n_streams)
    assert leg.may_return  # the carrier knows before us that it broke
    legs.take(legs.again(leg, call(), 1.0).ticket, "CA1", 1.0)
    older.keep("its ticket", "")
    older.end(is_over=True)
    assert (leg.state, leg.resume) == (LegState.STREAMING, "")
    LegStream(leg, leg.n_streams).end(is_over=True)
    assert leg.state is LegState.OVER and not leg.may_return


def test_a_call_has_a_bounded_number_of_streams_and_a_gateway_of_calls() -> None:
    legs = Legs()
    leg = legs.ring(call(), 0.0)
    for _ in range(MOST_STREAMS):
        legs.take(leg.ticket, "CA1", 0.0)
        LegStream(leg, leg.n_streams).end(is_over=False)
        if leg.may_return:
            legs.again(leg, call(), 0.0)
    assert leg.n_streams == MOST_STREAMS and not leg.may_return
    for number in range(2 * MOST_LEGS):
        legs.ring(call(str(number)), 0.0)
    assert len(legs._legs) == MOST_LEGS
