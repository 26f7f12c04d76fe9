"""The places of a server: how many are inside, who has one kept, and when callers begin.

Owns the count of what is inside, the callers who may come back, and when those who come together
begin. Pure: clock passed in, no sockets.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voiceloop.admission.room import LEAST_CALLS
from voiceloop.errors import Overloaded

RETRY_AFTER_S = (2, 12)  # a call lasts minutes; a place may come free at any moment
# Callers who begin at once are greeted at once, and ask at once what people ask first: nine that
# came within two seconds had a p95 of 1.6 times that of the same nine within fourteen.
FILLED_IN_S = 10.0


def retry_after() -> str:
    """Whole seconds for a refused client: each another, so that they do not come back as one."""
    return str(random.randint(*RETRY_AFTER_S))


class Admission:
    """Places, n_most of them, for what is named. ``drain`` stops new ones; those inside go on.

    n_reserved: of them, for callers who come back. on_empty: called when the last one has left.
    lacks: asked, with whether the caller comes back, why there is no room for one more; None where
    there is.
    """

    def __init__(
        self,
        n_most: int,
        named: str,
        on_empty: Callable[[], None] = lambda: None,
        *,
        n_reserved: int = 0,
        lacks: Callable[[bool], str | None] = lambda is_returning: None,
    ) -> None:
        self._n_most = n_most
        self._n_reserved = n_reserved
        self._named = named
        self.n_inside = 0
        self.is_draining = False
        self._on_empty = on_empty
        self._lacks = lacks

    @contextmanager
    def place(self, *, is_returning: bool = False) -> Iterator[None]:
        """Hold a place. Raises Overloaded when there is none."""
        if (lack := self.lack(is_returning=is_returning)) is not None:
            raise Overloaded(f"expected room for one more of the {self._named}, found {lack}")
        self.n_inside += 1
        try:
            yield
        finally:
            self.n_inside -= 1
            if not self.n_inside:
                self._on_empty()

    def lack(self, *, is_returning: bool = False) -> str | None:
        """Why there is no place at this moment; None where there is one."""
        if self.is_draining:
            return "a server that is shutting down"
        n_most = self._n_most if is_returning else self._n_most - self._n_reserved
        if self.n_inside >= n_most:
            return f"all {n_most} of them taken"
        return self._lacks(is_returning)

    def drain(self) -> None:
        self.is_draining = True


class Beginnings:
    """When callers who are let in begin: half of the places at once, the others one by one, as many
    as there are places in FILLED_IN_S.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_s = 0.0
        self.n_waiting = 0

    @contextmanager
    def wait(self, n_inside: int, n_places: int) -> Iterator[float]:
        """Seconds that one more caller is to wait within; n_inside: who have begun."""
        wait_s, now_s = 0.0, self._clock()
        if n_inside + self.n_waiting >= max(LEAST_CALLS, n_places // 2):
            begins_s = max(now_s, self._next_s)
            self._next_s = begins_s + FILLED_IN_S / n_places
            wait_s = begins_s - now_s
        self.n_waiting += 1
        try:
            yield wait_s
        finally:
            self.n_waiting -= 1


class LateCalls:
    """Calls that ended a moment ago, by id: who names one comes back. No id can be guessed."""

    KEPT_S = 60.0  # a line that broke is dialled again within that
    MOST = 4096

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at: OrderedDict[str, float] = OrderedDict()

    def add(self, call_id: str) -> None:
        self._ended_at[call_id] = self._clock()
        while len(self._ended_at) > self.MOST:
            self._ended_at.popitem(last=False)

    def knows(self, call_id: str) -> bool:
        """Whether this call ended within the last minute and its caller has not come back yet."""
        ended_at = self._ended_at.get(call_id)
        return ended_at is not None and self._clock() - ended_at <= self.KEPT_S

    def take(self, call_id: str) -> None:
        """Its caller is back: the id counts once. One that is not known is ignored."""
        self._ended_at.pop(call_id, None)
