"""What one key may use: calls at a time, and minutes of calls.

Owns the count for each tenant. Minutes are a bucket: it holds an hour's worth, is filled evenly,
and each call under way drains it. Nobody is cut off: calls go on where it is empty, as below
nothing, over another line too, and new ones are refused until that has come back. Pure: the clock
is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from voiceloop.errors import RateLimited

HOUR_S = 3600.0
LEAST_CALL_S = 60.0  # with less left a call is not begun


@dataclass(slots=True)
class _Use:
    """Of one tenant. left_s: of its minutes, at `at_s`."""

    left_s: float
    at_s: float
    n_calls: int = 0


class Quotas:
    """n_calls: at a time; call_minutes: an hour; 0 bounds nothing.

    Tenants are counted for as long as the server runs: there are as many as it has keys.
    """

    def __init__(self, n_calls: int, call_minutes: float, clock: Callable[[], float]) -> None:
        self._n_calls = n_calls
        self._whole_s = 60.0 * call_minutes
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    @contextmanager
    def call(self, tenant: str, *, is_returning: bool = False) -> Iterator[None]:
        """A call of this tenant's, for as long as it lasts.

        is_returning: its line broke, and the server may not know yet. All that the tenant may have
        can come back at once, beside what is left of them; it counts like any other.

        Raises: RateLimited: it has as many calls as it may, or no minutes left.
        """
        use = self._now(tenant)
        n_most = 2 * self._n_calls if is_returning else self._n_calls
        if self._n_calls and use.n_calls >= n_most:
            raise RateLimited(
                f"expected at most {self._n_calls} calls at a time with this key, found one more",
                code="quota_exceeded",
            )
        if self._whole_s and not is_returning and use.left_s < min(LEAST_CALL_S, self._whole_s):
            raise RateLimited(
                f"expected at most {self._whole_s / 60:g} minutes of calls an hour with this key, "
                "found them spent",
                code="quota_exceeded",
            )
        use.n_calls += 1
        try:
            yield
        finally:
            self._now(tenant).n_calls -= 1

    def _now(self, tenant: str) -> _Use:
        """What the tenant has used up to this moment."""
        now_s = self._clock()
        use = self._uses.setdefault(tenant, _Use(self._whole_s, now_s))
        gained_s = (now_s - use.at_s) * (self._whole_s / HOUR_S - use.n_calls)
        use.left_s = min(self._whole_s, use.left_s + gained_s)
        use.at_s = now_s
        return use
