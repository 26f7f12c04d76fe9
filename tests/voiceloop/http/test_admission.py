"""Slots for sessions."""

from __future__ import annotations

import pytest

from voiceloop.errors import Overloaded
from voiceloop.http.admission import Admission, Pace


def test_slots_are_bounded_and_come_free() -> None:
    admission = Admission(1, "sessions")
    with admission.slot():
        with pytest.raises(Overloaded, match="at most 1 sessions"), admission.slot():
            pass
        assert admission.n_inside == 1
    with admission.slot():
        pass


def test_a_failed_session_gives_its_slot_back() -> None:
    admission = Admission(1, "sessions")
    with pytest.raises(ZeroDivisionError), admission.slot():
        raise ZeroDivisionError
    with admission.slot():
        pass


def test_a_draining_server_takes_none() -> None:
    admission = Admission(1, "sessions")
    with admission.slot():
        admission.drain()
        assert admission.n_inside == 1
    with pytest.raises(Overloaded, match="shutting down"), admission.slot():
        pass


def test_the_last_to_leave_is_told_of() -> None:
    told: list[int] = []
    admission = Admission(2, "requests over HTTP", lambda: told.append(admission.n_inside))
    with admission.slot():
        with admission.slot():
            pass
        assert not told
    assert told == [0]


def test_a_burst_passes_and_then_the_pace_holds() -> None:
    now = [0.0]
    pace = Pace(10.0, 20.0, lambda: now[0])
    assert [pace.take() for _ in range(20)] == [0.0] * 20
    assert pace.take() == pytest.approx(0.1)
    now[0] += 0.1
    assert pace.take(2) == pytest.approx(0.2)
    now[0] += 100.0
    assert pace.take(20) == 0.0
