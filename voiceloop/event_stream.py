"""Owns the queue between whoever makes a stream's events and the one task that takes them.

The proxies of workers and of remote services are such streams: bounded, failed at most once, closed
idempotently, and silent after that.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

from voiceloop.errors import Overloaded, VoiceLoopError

# A reply has a few hundred events, and its taker is a task that does little else.
MAX_WAITING_EVENTS = 4096

EventT = TypeVar("EventT")
TaskT = TypeVar("TaskT")


class EventStream(ABC, Generic[EventT]):
    """Events of one stream; subclasses add how they are asked for."""

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        self._events: deque[EventT] = deque()
        self._arrived = asyncio.Event()
        self._failure: VoiceLoopError | None = None
        self._closed = False

    @property
    def live(self) -> bool:
        """Whether it is worth sending anything: neither closed nor failed."""
        return not self._closed and self._failure is None

    async def events(self) -> AsyncIterator[EventT]:
        """Events as they come. Raises: BackendError or Overloaded when the stream failed."""
        while not self._closed:
            if self._events:
                yield self._events.popleft()
            elif self._failure is not None:
                raise self._failure
            else:
                self._arrived.clear()
                await self._arrived.wait()

    async def close(self) -> None:
        if self._closed:
            return
        was_live = self.live
        self._closed = True
        self._events.clear()
        self._arrived.set()
        if was_live:
            self._end()

    def deliver(self, event: EventT) -> None:
        if not self.live:
            return
        if len(self._events) >= MAX_WAITING_EVENTS:
            self._end()
            self.fail(
                Overloaded(f"expected at most {MAX_WAITING_EVENTS} events waiting, found one more")
            )
            return
        self._events.append(event)
        self._arrived.set()

    def fail(self, error: VoiceLoopError) -> None:
        """Events that wait are still delivered, then ``events`` raises this."""
        if self.live:
            self._failure = error
            self._arrived.set()

    @abstractmethod
    def _end(self) -> None:
        """Called once, when a live stream is closed or overflows: stop making events."""


class TaskStream(EventStream[EventT]):
    """A stream whose events are made by tasks of this process, which end with it."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(stream_id)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        await super().close()
        self._end()  # a stream that failed has not been ended
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, TaskT], name: str) -> asyncio.Task[TaskT]:
        """Run it as a task, until it is done or the stream ends."""
        task = asyncio.create_task(work, name=f"{name} {self.stream_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
