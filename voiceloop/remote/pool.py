"""Several services of one role: which is asked, which next where it fails, and when two are.

A service has its own breaker and its own watch (`service.py`); one that is left alone or cannot be
reached is asked last. Nothing is asked twice once a caller may have heard of the answer.

Source: Dean and Barroso, The tail at scale (2013): hedged requests.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import Protocol, TypeVar

from voiceloop.cluster.pool import Member, less_behind

# A second request for a first token that is later than so many of the last ones were, and for at
# most so many of them: where all services are slow, asking twice would make them slower.
LATE = 0.95
HEDGED_SHARE = 0.05
HEDGES_AT_ONCE = 2.0  # that a quiet hour saves up
LEAST_SEEN, MOST_SEEN = 20, 64


class Service(Protocol):
    """What of a service its choice needs. n_open: requests or streams that it answers now."""

    @property
    def url(self) -> str: ...

    @property
    def reachable(self) -> bool: ...

    @property
    def n_open(self) -> int: ...


ServiceT = TypeVar("ServiceT", bound=Service)


def reachable_first(services: Sequence[ServiceT], draw: random.Random) -> list[ServiceT]:
    """In which order they are asked: of two that are there the less busy one, then the others."""
    there = [one for one in services if one.reachable]
    rest = [one for one in services if not one.reachable]
    if not there:
        return rest
    members = [Member(str(index), one.n_open) for index, one in enumerate(there)]
    first = there.pop(int(less_behind(members, draw).name))
    return [first, *there, *rest]


class Hedging:
    """When a second service is asked for a first token too. Pure: times are passed in."""

    def __init__(self) -> None:
        self._seen_s = deque[float](maxlen=MOST_SEEN)
        self._saved = 0.0
        self._n_taken = 0

    def observe(self, first_token_s: float) -> None:
        self._seen_s.append(first_token_s)
        self._saved = min(HEDGES_AT_ONCE, self._saved + HEDGED_SHARE)

    @property
    def after_s(self) -> float | None:
        """How long the first one is waited for; None while too little is known."""
        if len(self._seen_s) < LEAST_SEEN:
            return None
        ordered = sorted(self._seen_s)
        return ordered[min(len(ordered) - 1, int(LATE * len(ordered)))]

    def take(self) -> bool:
        """Whether one more may be asked twice."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self._n_taken += 1
        return True

    def take_count(self) -> int:
        """Requests that were asked twice, since this was last called."""
        taken, self._n_taken = self._n_taken, 0
        return taken
