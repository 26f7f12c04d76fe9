"""Limits for one caller, one number and one day: calls, minutes, and calls that we place.

Owns the counts. Who is over a limit is refused before anything is answered, and no model is asked.
Pure: times are passed in, in seconds of the day's own clock (`time.time()`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from voiceloop.day_hours import lies_within
from voiceloop.errors import RateLimited
from voiceloop.phone_settings import PhoneSettings
from voiceloop.telephony import WITHHELD, PhoneCall

HOUR_S, DAY_S = 3600.0, 86_400.0
MAX_CALLERS = 10_000  # that are remembered; who called longest ago is forgotten first


@dataclass(slots=True)
class _Caller:
    """began_s: of their calls in the last hour. open_s: when those began that go on. spent: when
    calls of theirs ended, and how long these were, of the last day.
    """

    began_s: deque[float] = field(default_factory=deque)
    open_s: list[float] = field(default_factory=list)
    spent: deque[tuple[float, float]] = field(default_factory=deque)

    def minutes(self, now_s: float) -> float:
        """Return the minutes of the last day, those of calls that go on among them."""
        spent_s = sum(seconds for _, seconds in self.spent)
        return (spent_s + sum(now_s - began_s for began_s in self.open_s)) / 60.0

    def forget_old(self, now_s: float) -> None:
        while self.began_s and self.began_s[0] < now_s - HOUR_S:
            self.began_s.popleft()
        while self.spent and self.spent[0][0] < now_s - DAY_S:
            self.spent.popleft()


class PhoneLimits:
    """The limits of one gateway. now: epoch seconds."""

    def __init__(self, settings: PhoneSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._callers: OrderedDict[str, _Caller] = OrderedDict()
        self._n_open: dict[str, int] = {}  # calls that go on, by the number that was called
        self._placed_s: deque[float] = deque()

    @contextmanager
    def call(self, call: PhoneCall) -> Iterator[None]:
        """A call for as long as it lasts. Raises: RateLimited: it is over a limit."""
        now_s = self._now()
        caller = self._caller(call.called if call.is_outbound else call.caller)
        caller.forget_old(now_s)
        self._check(call, caller, now_s)
        caller.began_s.append(now_s)
        caller.open_s.append(now_s)
        if call.is_outbound:
            self._placed_s.append(now_s)
        self._n_open[call.called] = self._n_open.get(call.called, 0) + 1
        try:
            yield
        finally:
            ended_s = self._now()
            caller.open_s.remove(now_s)
            caller.spent.append((ended_s, ended_s - now_s))
            self._n_open[call.called] -= 1
            if not self._n_open[call.called]:
                del self._n_open[call.called]

    def _caller(self, number: str) -> _Caller:
        """Return the caller to count by; callers who withhold their number are many people, so
        they are not counted.
        """
        if number == WITHHELD:
            return _Caller()
        caller = self._callers.setdefault(number, _Caller())
        self._callers.move_to_end(number)
        while len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)
        return caller

    def _check(self, call: PhoneCall, caller: _Caller, now_s: float) -> None:
        limits = self._settings
        n_most, n_open = limits.max_calls, self._n_open.get(call.called, 0)
        if n_most and n_open >= n_most:
            raise _over(f"at most {n_most} calls at once to one number", "one more")
        n_most = limits.calls_an_hour
        if n_most and len(caller.began_s) >= n_most:
            raise _over(f"at most {n_most} calls of one caller in an hour", "one more")
        if limits.minutes_a_day and caller.minutes(now_s) >= limits.minutes_a_day:
            raise _over(
                f"{limits.minutes_a_day} minutes of one caller in a day", "all of them used"
            )
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
