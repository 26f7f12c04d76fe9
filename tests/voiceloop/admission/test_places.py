"""Places for sessions."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from voiceloop.admission.places import Admission, Beginnings, LateCalls
from voiceloop.errors import Overloaded


def test_a_failed_session_gives_its_slot_back() -> None:
    admission = Admission(1, "sessions")
    with pytest.raises(ZeroDivisionError), admission.place():
        raise ZeroDivisionError
    with admission.place():
        pass


def test_a_draining_server_takes_none() -> None:
    admission = Admission(1, "sessions")
    with admission.place():
        admission.drain()
        assert admission.n_inside == 1
    with pytest.raises(Overloaded, match="shutting down"), admission.place():
        pass


def test_the_last_to_leave_is_told_of() -> None:
    told: list[int] = []
    admission = Admission(2, "requests over HTTP", lambda: told.append(admission.n_inside))
    with admission.place():
        with admission.place():
            pass
        assert not told
    assert told == [0]


def test_some_slots_are_kept_for_callers_who_come_back() -> None:
    admission = Admission(2, "sessions", n_reserved=1)
    with admission.place():
        with pytest.raises(Overloaded), admission.place():
            pass
        with admission.place(is_returning=True):
            assert admission.n_inside == 2
            with pytest.raises(Overloaded), admission.place(is_returning=True):
                pass


def test_what_lacks_keeps_a_caller_out_and_is_named() -> None:
    admission = Admission(2, "sessions", lacks=lambda is_back: None if is_back else "an overload")
    with pytest.raises(Overloaded, match="overload"), admission.place():
        pass
    with admission.place(is_returning=True):
        pass
    assert admission.lack() == "an overload"


def test_a_call_is_known_to_its_tenant_for_a_minute_after_its_end_and_once() -> None:
    now = [0.0]
    calls = LateCalls(lambda: now[0])
    calls.add("a", "sess_1")
    calls.add("a", "sess_2")
    now[0] = 59.0
    assert calls.knows("a", "sess_1") and calls.knows("a", "sess_1")
    assert not calls.knows("b", "sess_1")
    calls.take("a", "sess_1")
    assert not calls.knows("a", "sess_1")
    now[0] = 61.0
    assert not calls.knows("a", "sess_2") and not calls.knows("a", "")
    calls.take("a", "sess_invented")


def test_no_more_ended_calls_are_remembered_than_the_bound() -> None:
    calls = LateCalls(lambda: 0.0)
    for number in range(LateCalls.MOST + 1):
        calls.add("a", f"sess_{number}")
    assert not calls.knows("a", "sess_0") and calls.knows("a", "sess_1")


def test_callers_who_come_together_begin_one_after_the_other_past_half_of_the_places() -> None:
    now = [100.0]
    beginnings = Beginnings(lambda: now[0])
    n_inside, begun = 0, []
    with ExitStack() as waiting:
        for _ in range(10):  # within a moment
            begun.append(waiting.enter_context(beginnings.wait(n_inside, 10)))
        assert beginnings.n_waiting == 10
    assert begun == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    assert beginnings.n_waiting == 0


def test_a_call_that_comes_when_the_last_has_begun_long_ago_does_not_wait() -> None:
    now = [100.0]
    beginnings = Beginnings(lambda: now[0])
    for n_inside in range(9):
        with beginnings.wait(n_inside, 9) as wait_s:
            assert wait_s == 0.0
        now[0] += 2.3


def test_of_few_places_four_are_taken_at_once() -> None:
    beginnings = Beginnings(lambda: 7.0)
    waits = []
    for n_inside in range(6):
        with beginnings.wait(n_inside, 5) as wait_s:
            waits.append(wait_s)
    assert waits == pytest.approx([0.0, 0.0, 0.0, 0.0, 0.0, 2.0])
