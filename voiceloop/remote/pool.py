"""Several services of one role: which is asked, and which next where it fails.

A service has its own breaker and its own watch (`service.py`); one that is left alone or cannot be
reached is asked last. Nothing is asked twice once a caller may have heard of the answer.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from voiceloop.cluster.pool import Member, less_behind
from voiceloop.errors import BackendError, BackendRefused

log = logging.getLogger(__name__)


class Service(Protocol):
    """The part of a service that its choice needs. n_open: requests or streams that it answers
    now.
    """

    @property
    def url(self) -> str: ...

    @property
    def reachable(self) -> bool: ...

    @property
    def n_open(self) -> int: ...


ServiceT = TypeVar("ServiceT", bound=Service)
T = TypeVar("T")


def reachable_first(services: Sequence[ServiceT], draw: random.Random) -> list[ServiceT]:
    """Return the order in which they are asked: of two that are there the less busy one, then
    the others.
    """
    there = [one for one in services if one.reachable]
    rest = [one for one in services if not one.reachable]
    if not there:
        return rest
    members = [Member(str(index), one.n_open) for index, one in enumerate(there)]
    first = there.pop(int(less_behind(members, draw).name))
    return [first, *there, *rest]


async def first_answer(
    services: list[ServiceT],
    ask: Callable[[ServiceT], Awaitable[T]],
    may_go_on: Callable[[], bool] = lambda: True,
) -> T:
    """The answer of the first that gives one; those before it leave the list, for good.

    may_go_on: whether another may be asked once one has failed. Raises: BackendRefused at once,
    else BackendError as of the last that was asked.
    """
    while True:
        service = services[0]
        try:
            return await ask(service)
        except BackendRefused:
            raise
        except BackendError as error:
            if services[0] is service and (len(services) == 1 or not may_go_on()):
                raise
            log.warning("%s; the next service is asked", error)
            if services[0] is service:  # else another request has found it out
                services.pop(0)
