"""The places of a server: how many are inside, who has one kept, and when callers begin.

Owns the count of what is inside, calls and the requests over HTTP beside them; the callers who may
come back; and when those who come together begin. Pure: clock passed in, no sockets.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from voiceloop.admission.overload import Level
from voiceloop.admission.room import LEAST_CALLS, Room, for_new_callers, lack_of_room
from voiceloop.errors import Overloaded
from voiceloop.operation import Limits

Wait = Callable[[float], Awaitable[None]]  # so many seconds

RETRY_AFTER_S = (2, 12)  # a call lasts minutes; a place may come free at any moment
# Callers who begin at once are greeted at once, and ask at once what people ask first: nine that
# came within two seconds had a p95 of 1.6 times that of the same nine within fourteen.
FILLED_IN_S = 10.0
# Beside the calls, not instead of them: the engine has branches for more, but each request there
# takes a share of every step from the people on the line.
MAX_HTTP_REQUESTS = 16
MAX_HTTP_REQUESTS_IN_NEED = 4  # while the machine is busy


def retry_after() -> str:
    """Whole seconds for a refused client: each another, so that they do not come back as one."""
    return str(random.randint(*RETRY_AFTER_S))


class Admission:
    """Places, n_most of them, for what is named. ``drain`` stops new ones; those inside go on.

    n_reserved: of them, for callers who come back. on_empty: called when the last one has left.
    lacks: asked, with whether the caller comes back, why there is no room for one more; None where
    there is. giving_way: asked where all places are taken; what it returns, if anything, frees one.
    """

    def __init__(
        self,
        n_most: int,
        named: str,
        on_empty: Callable[[], None] = lambda: None,
        *,
        n_reserved: int = 0,
        lacks: Callable[[bool], str | None] = lambda is_returning: None,
        giving_way: Callable[[], Callable[[], None] | None] = lambda: None,
    ) -> None:
        self._n_most = n_most
        self._n_reserved = n_reserved
        self._named = named
        self.n_inside = 0
        self.is_draining = False
        self._on_empty = on_empty
        self._lacks = lacks
        self._giving_way = giving_way

    @contextmanager
    def place(self, *, is_returning: bool = False) -> Iterator[None]:
        """Hold a place. Raises Overloaded when there is none."""
        if (lack := self.lack(is_returning=is_returning)) is not None:
            raise Overloaded(f"No room for one more of the {self._named}: {lack}. Try again later.")
        if self.n_inside >= self._n_most_of(is_returning=is_returning):
            give_way = self._giving_way()
            if give_way is not None:
                give_way()
        self.n_inside += 1
        try:
            yield
        finally:
            self.n_inside -= 1
            if not self.n_inside:
                self._on_empty()

    def lack(self, *, is_returning: bool = False) -> str | None:
        """Return why there is no place at this moment; None where there is one."""
        if self.is_draining:
            return "the server is shutting down"
        n_most = self._n_most_of(is_returning=is_returning)
        if self.n_inside >= n_most and self._giving_way() is None:
            return f"all {n_most} are taken"
        return self._lacks(is_returning)

    def _n_most_of(self, *, is_returning: bool) -> int:
        return self._n_most if is_returning else self._n_most - self._n_reserved

    def drain(self) -> None:
        self.is_draining = True


class Beginnings:
    """The pace at which admitted callers begin: half of the places at once, the others one by one,
    as many as there are places in FILLED_IN_S.
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
    """Calls that ended a moment ago, by tenant and id: who names its own comes back."""

    KEPT_S = 60.0  # a line that broke is dialled again within that
    MOST = 4096

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ended_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    def add(self, tenant: str, call_id: str) -> None:
        self._ended_at[tenant, call_id] = self._clock()
        while len(self._ended_at) > self.MOST:
            self._ended_at.popitem(last=False)

    def knows(self, tenant: str, call_id: str) -> bool:
        """Whether this call ended within the last minute and its caller has not come back yet."""
        ended_at = self._ended_at.get((tenant, call_id))
        return ended_at is not None and self._clock() - ended_at <= self.KEPT_S

    def take(self, tenant: str, call_id: str) -> None:
        """Take a place; its caller is back: the id counts once. One that is not known is
        ignored.
        """
        self._ended_at.pop((tenant, call_id), None)


class CallAdmission(Admission):
    """Places for calls. late_s: p95 of answers that is late. n_talking, taken, level: at this
    moment; taken: places, of which a call that says nothing has a tenth."""

    def __init__(
        self,
        limits: Limits,
        late_s: float,
        n_talking: Callable[[], int],
        taken: Callable[[], float],
        level: Callable[[], Level],
        clock: Callable[[], float],
        on_empty: Callable[[], None],
        giving_way: Callable[[], Callable[[], None] | None],
    ) -> None:
        most = limits.max_sessions
        self.n_for_new = for_new_callers(most)
        n_kept = most - self.n_for_new
        super().__init__(
            most, "sessions", on_empty,
            n_reserved=n_kept, lacks=self.lacks_room, giving_way=giving_way,
        )  # fmt: skip
        self.room = Room(most, late_s)
        self.late_calls = LateCalls(clock)
        self.n_talking, self.taken, self.level = n_talking, taken, level
        self._beginnings = Beginnings(clock)
        self._is_by_load = limits.admit_by_load

    def lacks_room(self, is_returning: bool = False) -> str | None:
        """Return why this machine carries no more calls at the moment; None where it does."""
        if not self._is_by_load:
            return None
        n_calls = self.taken() + self._beginnings.n_waiting
        return lack_of_room(self.level(), self.room.n_calls, n_calls, is_returning)

    async def until_it_begins(self, wait: Wait) -> None:
        """Wait until one more call may begin. Raises: Overloaded where none may by then."""
        if self._is_by_load:
            with self._beginnings.wait(self.n_talking(), self.room.n_calls) as wait_s:
                await wait(wait_s)
        if self.is_draining:  # nobody would tell the call that it is to end
            raise Overloaded("This server is shutting down. Call again.")


class RequestAdmission(Admission):
    """Places for requests over HTTP beside these calls, which come first on a busy machine."""

    def __init__(self, calls: CallAdmission, on_empty: Callable[[], None]) -> None:
        super().__init__(MAX_HTTP_REQUESTS, "requests over HTTP", on_empty, lacks=self._lacks_room)
        self._calls = calls

    def _lacks_room(self, is_returning: bool) -> str | None:
        if not self._calls.n_talking():
            return None  # whatever the load is, nobody on the line waits for it
        level = self._calls.level()
        if level is Level.FULL:
            return f"calls need the machine (level {level.name.lower()})"
        if level is not Level.NORMAL and self.n_inside >= MAX_HTTP_REQUESTS_IN_NEED:
            return f"{self.n_inside} are under way, and calls need the machine"
        return None
