"""When a service that keeps failing is asked again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hand_clock import HandClock
from voiceloop.remote.circuit_breaker import (
    FIRST_OPEN_S,
    LONGEST_OPEN_S,
    MAX_FAILURES,
    CircuitBreaker,
)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def opened(clock: HandClock) -> CircuitBreaker:
    breaker = CircuitBreaker(clock)
    for _ in range(MAX_FAILURES):
        assert breaker.admit()
        breaker.failed("gone")
    return breaker


def test_it_opens_at_the_third_failure_in_a_row(clock: HandClock) -> None:
    breaker = CircuitBreaker(clock)
    for fate in ("fail", "fail", "pass", "fail", "fail"):
        breaker.failed("gone") if fate == "fail" else breaker.succeeded()
    assert breaker.state == "closed"
    breaker.failed("gone")
    assert breaker.state == "open"
    assert not breaker.admit()


def test_after_its_wait_one_request_passes_and_success_closes_it(clock: HandClock) -> None:
    breaker = opened(clock)
    clock.now_s += FIRST_OPEN_S
    assert breaker.admit()
    assert not breaker.admit()
    breaker.succeeded()
    assert breaker.state == "closed" and breaker.admit()


def test_each_failed_probe_doubles_the_wait_up_to_the_longest(clock: HandClock) -> None:
    breaker = opened(clock)
    waits = []
    for _ in range(8):
        waits.append(breaker.wait_s())
        clock.now_s += breaker.wait_s()
        assert breaker.admit()
        breaker.failed("still gone")
    assert waits[:3] == [FIRST_OPEN_S, 2 * FIRST_OPEN_S, 4 * FIRST_OPEN_S]
    assert waits[-1] == LONGEST_OPEN_S


@given(st.lists(st.sampled_from(["ask", "fail", "pass", "give up", "wait"]), max_size=40))
def test_no_order_of_fates_shuts_a_service_out_for_ever(fates: list[str]) -> None:
    clock = HandClock()
    breaker = CircuitBreaker(clock)
    under_way = 0
    for fate in fates:
        if fate == "ask":
            under_way += breaker.admit()
        elif fate == "wait":
            clock.now_s += 1.0
        elif under_way:
            under_way -= 1
            {"fail": lambda: breaker.failed("x"), "pass": breaker.succeeded}.get(
                fate, breaker.abandoned
            )()
    for _ in range(under_way):
        breaker.failed("x")
    clock.now_s += LONGEST_OPEN_S
    assert breaker.admit()
