"""What callers, numbers and days may cost."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime, time

import pytest

from voiceloop.config import Config
from voiceloop.day_hours import lies_within
from voiceloop.doors.limits import MAX_CALLERS, PhoneLimits
from voiceloop.doors.phone import hello_of_call
from voiceloop.errors import RateLimited
from voiceloop.phone_settings import PhoneSettings, is_within
from voiceloop.telephony import WITHHELD, PhoneCall

IN = PhoneCall("sip", "+49301", "+49309")
OUT = PhoneCall("sip", "+49309", "+49301", is_outbound=True)
NOON_S = datetime(2026, 3, 2, 12).timestamp()


class Day:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = NOON_S

    def limits(self, **settings: object) -> PhoneLimits:
        return PhoneLimits(PhoneSettings(**settings), lambda: self.now_s)  # type: ignore[arg-type]


def is_refused(limits: PhoneLimits, call: PhoneCall) -> bool:
    try:
        with limits.call(call):
            return False
    except RateLimited as error:
        assert error.wire_code == "phone_limit"
        return True


def test_calls_at_once_are_counted_by_number_and_given_back() -> None:
    limits = Day().limits(max_calls=2)
    with ExitStack() as stack:
        stack.enter_context(limits.call(IN))
        stack.enter_context(limits.call(IN))
        assert is_refused(limits, IN)
        assert not is_refused(limits, PhoneCall("sip", "+49301", "+49308"))
    assert not is_refused(limits, IN)


def test_a_caller_has_so_many_calls_an_hour() -> None:
    day = Day()
    limits = day.limits(calls_an_hour=2)
    assert [is_refused(limits, IN) for _ in range(3)] == [False, False, True]
    assert not is_refused(limits, PhoneCall("sip", "+49302", "+49309"))
    day.now_s += 3601
    assert not is_refused(limits, IN)


def test_nobody_is_counted_who_withholds_the_number_and_few_are_remembered() -> None:
    limits = Day().limits(calls_an_hour=1)
    assert not any(is_refused(limits, PhoneCall("sip")) for _ in range(3))
    for n in range(MAX_CALLERS + 5):
        is_refused(limits, PhoneCall("sip", str(n)))
    assert len(limits._callers) == MAX_CALLERS


def test_calls_that_we_place_have_a_cap_and_quiet_hours() -> None:
    day = Day()
    limits = day.limits(outbound_a_day=2, quiet_hours="21:00-08:00")
    assert [is_refused(limits, OUT) for _ in range(3)] == [False, False, True]
    assert not is_refused(limits, IN)
    day.now_s += 86_400 + 9.5 * 3600
    assert is_refused(limits, OUT) and not is_refused(limits, IN)


@pytest.mark.parametrize(
    ("hours", "quiet", "loud"),
    [("21:00-08:00", (22, 3), (8, 12)), ("13:00-15:00", (13, 14), (12, 15)), ("", (), (3,))],
)
def test_quiet_hours_may_pass_midnight(
    hours: str, quiet: tuple[int, ...], loud: tuple[int, ...]
) -> None:
    assert all(lies_within(hours, time(hour)) for hour in quiet)
    assert not any(lies_within(hours, time(hour)) for hour in loud)


@pytest.mark.parametrize("told", ["Anonymous", "anonymous", "+266696687"])
def test_a_word_for_a_number_that_is_not_told_is_nobody_s_number(told: str) -> None:
    hello = hello_of_call(Config(), PhoneCall("sip", told, "+49309"))
    assert hello.phone is not None and hello.phone.caller == WITHHELD


def test_an_address_that_names_another_host_before_the_allowed_one_is_not_within() -> None:
    patterns = ("sip:*@office.example", "tel:+49*")
    assert is_within("sip:desk@office.example", patterns) and is_within("tel:+4930", patterns)
    assert not is_within("sip:+1900@elsewhere;x=@office.example", patterns)
    assert not is_within("sip:+1900@elsewhere?X=@office.example", patterns)
