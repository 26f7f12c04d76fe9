"""The limits of one caller, one number and one day: calls, and calls that we place.

Owns the counts. Who is over a limit is refused before anything is answered, and no model is asked.
Pure: times are passed in, in seconds of the day's own clock (`time.time()`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from voiceloop.day_hours import lies_within
from voiceloop.errors import RateLimited
from voiceloop.phone_settings import PhoneSettings
from voiceloop.telephony import WITHHELD, PhoneCall

HOUR_S, DAY_S = 3600.0, 86_400.0
MAX_CALLERS = 10_000  # that are remembered; who called longest ago is forgotten first


class PhoneLimits:
    """The limits of one gateway. now: epoch seconds."""

    def __init__(self, settings: PhoneSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        # When calls of the last hour began, by who called (or was called by us).
        self._callers: OrderedDict[str, deque[float]] = OrderedDict()
        self._n_open: dict[str, int] = {}  # calls that go on, by the number that was called
        self._placed_s: deque[float] = deque()

    @contextmanager
    def call(self, call: PhoneCall) -> Iterator[None]:
        """A call for as long as it lasts. Raises: RateLimited: it is over a limit."""
        now_s = self._now()
        began_s = self._began_s(call.called if call.is_outbound else call.caller)
        while began_s and began_s[0] < now_s - HOUR_S:
            began_s.popleft()
        self._check(call, len(began_s), now_s)
        began_s.append(now_s)
        if call.is_outbound:
            self._placed_s.append(now_s)
        self._n_open[call.called] = self._n_open.get(call.called, 0) + 1
        try:
            yield
        finally:
            self._n_open[call.called] -= 1
            if not self._n_open[call.called]:
                del self._n_open[call.called]

    def _began_s(self, number: str) -> deque[float]:
        """Callers who withhold their number are many people, so they are not counted."""
        if number == WITHHELD:
            return deque()
        began_s = self._callers.setdefault(number, deque())
        self._callers.move_to_end(number)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return began_s

    def _check(self, call: PhoneCall, n_of_caller: int, now_s: float) -> None:
        limits = self._settings
        n_most, n_open = limits.max_calls, self._n_open.get(call.called, 0)
        if n_most and n_open >= n_most:
            raise _over(f"at most {n_most} calls at once to one number", "one more")
        n_most = limits.calls_an_hour
        if n_most and n_of_caller >= n_most:
            raise _over(f"at most {n_most} calls of one caller in an hour", "one more")
        if not call.is_outbound:
            return
        while self._placed_s and self._placed_s[0] < now_s - DAY_S:
            self._placed_s.popleft()
        if limits.outbound_a_day and len(self._placed_s) >= limits.outbound_a_day:
            raise _over(f"at most {limits.outbound_a_day} calls placed in a day", "one more")
        if lies_within(limits.quiet_hours, datetime.fromtimestamp(now_s).time()):
            raise _over(f"a call outside of {limits.quiet_hours}", "one within")


def _over(wanted: str, found: str) -> RateLimited:
    return RateLimited(f"expected {wanted}, found {found}", code="phone_limit")
