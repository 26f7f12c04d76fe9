"""Owns the queue between whoever makes a stream's events and the one task that takes them.

The proxies of workers and of remote services are such streams: bounded, failed at most once, closed
idempotently, and silent after that. Who makes sound that nobody takes is asked to pause, and to go
on once half of it is taken.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Generic, TypeVar

from voiceloop.backends import Speech, SpeechEnd, Voice, VoiceEvent, VoiceOptions
from voiceloop.errors import BackendError, Overloaded, VoiceLoopError

# A reply has a few hundred events, and its taker is a task that does little else.
MAX_WAITING_EVENTS = 4096
# Of sound that waits, ten seconds at 24 kHz: who reads that slowly is given more in time.
PAUSED_FROM_BYTES = 512 * 1024

EventT = TypeVar("EventT")
TaskT = TypeVar("TaskT")


class EventStream(ABC, Generic[EventT]):
    """Events of one stream; subclasses add how they are asked for."""

    def __init__(self, stream_id: str) -> None:
        self.stream_id = stream_id
        self._events: deque[EventT] = deque()
        self._sound_bytes = 0  # of these
        self._is_paused = False
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
                event = self._events.popleft()
                self._count_sound(event, -1)
                yield event
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
        self._count_sound(event, 1)
        self._arrived.set()

    def fail(self, error: VoiceLoopError) -> None:
        """Events that wait are still delivered, then ``events`` raises this."""
        if self.live:
            self._failure = error
            self._arrived.set()

    def _count_sound(self, event: EventT, sign: int) -> None:
        """Count that this event waits from now on, or no longer."""
        if not isinstance(event, Speech):
            return
        self._sound_bytes += sign * len(event.samples)
        most_bytes = PAUSED_FROM_BYTES // 2 if self._is_paused else PAUSED_FROM_BYTES
        if (self._sound_bytes > most_bytes) is not self._is_paused:
            self._is_paused = not self._is_paused
            self._pause(self._is_paused)

    def _pause(self, is_paused: bool) -> None:
        """Make no more for now, or go on; here nobody is told."""

    @abstractmethod
    def _end(self) -> None:
        """Called once, when a live stream is closed or overflows: stop making events."""


class TaskStream(EventStream[EventT]):
    """A stream whose events are made by tasks of this process, which end with it."""

    def __init__(self, stream_id: str) -> None:
        super().__init__(stream_id)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._may_go_on = asyncio.Event()  # awaited by a task before it makes more
        self._may_go_on.set()

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

    def _pause(self, is_paused: bool) -> None:
        if is_paused:
            self._may_go_on.clear()
        else:
            self._may_go_on.set()

    def _end(self) -> None:
        for task in self._tasks:
            task.cancel()


async def spoken(
    voice: Voice, line: str, options: VoiceOptions, stream_id: str
) -> AsyncIterator[VoiceEvent]:
    """A whole line as a voice says it, the end of it last. Raises: as the voice."""
    stream = await voice.open(stream_id, options)
    try:
        stream.feed(line)
        stream.finish()
        async for event in stream.events():
            yield event
            if isinstance(event, SpeechEnd):
                return
        raise BackendError("expected the end of a line, found the voice closed")
    finally:
        await stream.close()
