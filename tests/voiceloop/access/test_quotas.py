"""What one key may use leaves the others theirs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from voiceloop.access.quotas import Quotas
from voiceloop.errors import RateLimited


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_key_has_so_many_calls_at_a_time_and_its_neighbour_as_many(clock: Clock) -> None:
    quotas = Quotas(2, 0.0, clock)
    with ExitStack() as calls:
        calls.enter_context(quotas.call("a"))
        calls.enter_context(quotas.call("a"))
        with pytest.raises(RateLimited) as caught, quotas.call("a"):
            pass
        assert (caught.value.wire_code, caught.value.http_status) == ("quota_exceeded", 429)
        calls.enter_context(quotas.call("b"))
    with quotas.call("a"):
        pass


def test_minutes_are_spent_by_calls_and_come_back_evenly(clock: Clock) -> None:
    quotas = Quotas(0, 30.0, clock)
    with quotas.call("a"):
        clock.now_s += 3400.0  # while half of that comes back
    with quotas.call("a"):  # 100 s are left, and the call goes on beyond them
        clock.now_s += 400.0
    with pytest.raises(RateLimited), quotas.call("a"):
        pass
    with quotas.call("b"):
        pass
    clock.now_s += 200.0  # of the 100 s that were overdrawn as many came back
    with pytest.raises(RateLimited), quotas.call("a"):
        pass
    clock.now_s += 121.0
    with quotas.call("a"):
        pass


def test_calls_at_once_spend_at_once(clock: Clock) -> None:
    quotas = Quotas(0, 10.0, clock)
    with quotas.call("a"), quotas.call("a"), quotas.call("a"):
        clock.now_s += 300.0
        with pytest.raises(RateLimited), quotas.call("a"):
            pass
    clock.now_s += 600.0
    with pytest.raises(RateLimited), quotas.call("a"):  # what they overdrew comes first
        pass


def test_without_a_quota_nothing_is_bounded(clock: Clock) -> None:
    quotas = Quotas(0, 0.0, clock)
    with ExitStack() as calls:
        for _ in range(100):
            calls.enter_context(quotas.call("a"))
            clock.now_s += 1e6


def test_calls_that_come_back_are_let_in_up_to_as_many_again_and_count(clock: Clock) -> None:
    quotas = Quotas(2, 30.0, clock)
    with ExitStack() as broken, ExitStack() as back:
        for _ in range(2):
            broken.enter_context(quotas.call("a"))
        clock.now_s += 3600.0  # and the minutes are spent
        for _ in range(2):
            back.enter_context(quotas.call("a", is_returning=True))
        with pytest.raises(RateLimited), quotas.call("a", is_returning=True):
            pass
        broken.close()
        with pytest.raises(RateLimited), quotas.call("a"):
            pass
