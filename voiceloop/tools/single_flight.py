"""One call for all who ask the same thing at the same time.

Owns the tasks of such calls. A call lives while somebody waits for it: the first who asked may
leave (barge-in, deadline) without taking it from the others, and with the last it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any

from voiceloop.tools.executor import ToolFailed


@dataclass(slots=True)
class Flight:
    task: asyncio.Task[str]
    n_waiting: int = 0


class SingleFlight:
    """`run` as often as wanted; `close` at the end."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, Flight] = {}
        self._leaving: set[asyncio.Task[str]] = set()  # cancelled, and not over yet

    async def run(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, str]]) -> str:
        """The result of the call under way for ``key``, or else of the one that ``make`` begins.

        Raises:
            ToolFailed: the call did; or `close` was called.
        """
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = Flight(asyncio.create_task(make(), name="tool call"))
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        flight.n_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if flight.task.cancelled() and not (task and task.cancelling()):
                raise ToolFailed(
                    "expected a result, found the tools closed", told="failed"
                ) from None
            raise
        finally:
            flight.n_waiting -= 1
            if not flight.n_waiting and not flight.task.done():
                self._flights.pop(key)  # who asks from now on gets a call of their own
                self._leaving.add(flight.task)
                flight.task.cancel()

    async def close(self) -> None:
        tasks = [flight.task for flight in self._flights.values()] + list(self._leaving)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _landed(self, key: Hashable, task: asyncio.Task[str]) -> None:
        self._leaving.discard(task)
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]
        if not task.cancelled():
            task.exception()  # those who waited have it; where all left, nobody is to be told
