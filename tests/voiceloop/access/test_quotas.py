"""What one key may use leaves the others theirs."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.hand_clock import HandClock
from voiceloop.access.quotas import Quotas
from voiceloop.errors import RateLimited
from voiceloop.operation import KeyQuota


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def test_a_key_has_so_many_calls_at_a_time_and_its_neighbour_as_many(clock: HandClock) -> None:
    quotas = Quotas(KeyQuota(calls=2), clock)
    with ExitStack() as calls:
        calls.enter_context(quotas.call("a"))
        calls.enter_context(quotas.call("a"))
        with pytest.raises(RateLimited) as caught, quotas.call("a"):
            pass
        assert (caught.value.wire_code, caught.value.http_status) == ("quota_exceeded", 429)
        calls.enter_context(quotas.call("b"))
    with quotas.call("a"):
        pass


def test_minutes_are_spent_by_calls_and_come_back_evenly(clock: HandClock) -> None:
    quotas = Quotas(KeyQuota(call_minutes=30.0), clock)
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


def test_calls_at_once_spend_at_once(clock: HandClock) -> None:
    quotas = Quotas(KeyQuota(call_minutes=10.0), clock)
    with quotas.call("a"), quotas.call("a"), quotas.call("a"):
        clock.now_s += 300.0
        with pytest.raises(RateLimited), quotas.call("a"):
            pass
    clock.now_s += 600.0
    with pytest.raises(RateLimited), quotas.call("a"):  # what they overdrew comes first
        pass


def test_calls_with_a_ticket_are_let_in_up_to_as_many_again_and_count(clock: HandClock) -> None:
    quotas = Quotas(KeyQuota(calls=2, call_minutes=30.0), clock)
    with ExitStack() as broken, ExitStack() as back:
        for _ in range(2):
            broken.enter_context(quotas.call("a"))
        clock.now_s += 3600.0  # and the minutes are spent
        for _ in range(2):
            assert back.enter_context(quotas.call("a", has_ticket=True))  # beyond the quota
        with pytest.raises(RateLimited), quotas.call("a", has_ticket=True):
            pass
        broken.close()
        with pytest.raises(RateLimited), quotas.call("a"):
            pass


def test_one_keys_requests_leave_room_for_anothers(clock: HandClock) -> None:
    spent: list[str] = []
    quotas = Quotas(KeyQuota(), clock, spent.append)
    with ExitStack() as requests:
        for _ in range(KeyQuota.requests - 1):
            requests.enter_context(quotas.request("a"))
        with quotas.request("a"):
            with pytest.raises(RateLimited), quotas.request("a"):
                pass
            requests.enter_context(quotas.request("b"))
        requests.enter_context(quotas.request("a"))
    assert spent == ["requests"]


def test_tokens_of_the_large_model_are_counted_by_the_hour(clock: HandClock) -> None:
    spent: list[str] = []
    quotas = Quotas(KeyQuota(large_tokens=20), clock, spent.append)
    one, other = quotas.allowance("a"), quotas.allowance("b")
    assert one.may_use_large()
    one.take_large_tokens(25)  # on credit
    assert not one.may_use_large() and other.may_use_large() and spent == ["large_tokens"]
    clock.now_s += 1800.0
    assert one.may_use_large()
