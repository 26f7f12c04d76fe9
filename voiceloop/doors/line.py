"""A call's line by a door of its own: what its far end sends and is sent, and who sits beside it.

Owns the queue towards the session, which is bounded by what waits in it, and the copies of all
events for those beside the call (`sideband.py`). The far end itself is the door's.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from voiceloop.admission.bucket import Bucket
from voiceloop.call.connection import HUNG_UP, Disconnected, Hello
from voiceloop.errors import Overloaded
from voiceloop.realtime.sound_line import Digit, Sound, SoundLine, Unlocked
from voiceloop.telephony import KEYS, PhoneLine

# Of one call, between its line and its session, which reads at once unless its client does not.
MAX_SOUND_BYTES = 24_000 * 2 * 10
MAX_EVENT_BYTES = 4 * 1024 * 1024
EVENTS_PER_S, EVENTS_AT_ONCE = 500.0, 1000.0  # as of a WebSocket
MAX_SIDES = 4  # beside one call: a tool server, a monitor, a person who listens, one to spare
MAX_SIDE_FRAMES = 1024  # that wait for one of them; who reads no faster is let go
CREATED, UPDATED = '{"type":"session.created"', '{"type":"session.updated"'


Frame = Sound | Digit | Unlocked | str | bytes


class FarEnd(SoundLine, Protocol):
    """The door's end of the line."""

    async def send(self, event: str) -> None:
        """Waits while the peer takes no events. Raises: Disconnected."""

    async def close(self) -> None: ...


class Side:
    """One who sits beside a call: reads each event, writes events as its client does."""

    def __init__(self, first: str) -> None:
        self._frames: asyncio.Queue[str | None] = asyncio.Queue(MAX_SIDE_FRAMES)
        self.is_over = False
        if first:
            self._frames.put_nowait(first)

    def put(self, event: str) -> None:
        if self._frames.full():
            self.end()
        elif not self.is_over:
            self._frames.put_nowait(event)

    def end(self) -> None:
        """End: nothing more comes; what waits still does, unless too much did."""
        if not self.is_over:
            self.is_over = True
            if self._frames.full():
                self._frames.get_nowait()
            self._frames.put_nowait(None)

    async def next(self) -> str | None:
        """The next event of the call; None after the last."""
        return await self._frames.get()


class Line:
    """`Transport` of a call whose line carries sound. far: set once, before the session runs;
    phone: with it, where the far end is a telephone.
    """

    def __init__(self, hello: Hello, clock: Callable[[], float]) -> None:
        self.hello = hello
        self.far: FarEnd
        self.phone: PhoneLine | None = None
        self.last_headers: list[tuple[str, str]] = []  # what a telephone's exchange is told at last
        self._waiting: deque[Frame] = deque()
        self._n_sound = self._n_event = 0  # bytes of those
        self._arrived = asyncio.Event()
        self._rate = Bucket(EVENTS_AT_ONCE, EVENTS_PER_S, clock)
        self._wait_s = 0.0
        self._ending: Disconnected | None = None
        self.on_end: Callable[[], object] = lambda: None
        self._sides: list[Side] = []
        self._session = ""  # the last that was told of it

    @property
    def line(self) -> SoundLine:
        return self.far

    @property
    def ending(self) -> Disconnected | None:
        """How it ends, once it does."""
        return self._ending

    # --- the far end's side ---

    def hear(self, samples: bytes) -> None:
        """The caller's next sound, of LINE_FORMAT. A session that does not read misses some."""
        if self._n_sound + len(samples) <= MAX_SOUND_BYTES:
            self._n_sound += len(samples)
            self._put(Sound(samples))

    def press(self, key: str) -> None:
        """The caller has pressed this key; what is none of KEYS is dropped."""
        if key in KEYS and self._n_event < MAX_EVENT_BYTES:
            self._n_event += 1
            self._put(Digit(key))

    def take(self, event: str | bytes, *, is_unlocked: bool = False) -> None:
        """The client's next event, or that of one beside it. is_unlocked: as `Unlocked`."""
        self._n_event += len(event)
        if self._n_event > MAX_EVENT_BYTES:
            self.end(1008, f"more than {MAX_EVENT_BYTES} bytes of events waited to be read")
        else:
            self._put(Unlocked(event) if is_unlocked else event)

    def end(self, code: int, how: str) -> None:
        """The far end has gone, or is to: nothing more is read. how: for the log."""
        if self._ending is None:
            self._ending = Disconnected(code, how)
            self.on_end()
        self._arrived.set()

    def hang_up(self) -> None:
        """End the call for whoever asked for that."""
        self.end(HUNG_UP, "the call was hung up over HTTP")

    def _put(self, frame: Frame) -> None:
        self._waiting.append(frame)
        self._arrived.set()

    # --- the session's side ---

    async def receive(self) -> Frame:
        """Wait for the next event or sound. Raises: Disconnected. Events in a flood are slowed."""
        if self._wait_s > 0.0:
            await asyncio.sleep(self._wait_s)
            self._wait_s = 0.0
        while not self._waiting or self._ending is not None:
            if self._ending is not None:
                raise self._ending
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._waiting.popleft()
        if isinstance(frame, Sound):
            self._n_sound -= len(frame.samples)
        elif isinstance(frame, Digit):
            self._n_event -= 1
        else:
            self._n_event -= len(frame.event if isinstance(frame, Unlocked) else frame)
            self._wait_s = self._rate.take()
        return frame

    async def send(self, data: str) -> None:
        """Send an event to the client and to those beside. Raises: Disconnected."""
        if data.startswith((CREATED, UPDATED)):
            self._session = data
        for side in self._sides:
            side.put(data)
        if self._ending is not None:
            raise self._ending
        await self.far.send(data)

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """End the line; idempotent. There is no close frame: an error was sent where one is due."""
        self.end(code, reason)
        for side in self._sides:
            side.end()
        await self.far.close()

    # --- beside it ---

    @contextmanager
    def side(self) -> Iterator[Side]:
        """A seat beside the call; it begins with the session as it stands. Raises: Overloaded."""
        if len(self._sides) >= MAX_SIDES:
            raise Overloaded(f"A call takes {MAX_SIDES} connections beside it, and has them.")
        side = Side(_created(self._session))
        self._sides.append(side)
        if self._ending is not None:
            side.end()
        try:
            yield side
        finally:
            self._sides.remove(side)


def _created(told: str) -> str:
    """The event that begins a session, of the last that told of it."""
    if not told:
        return ""
    return json.dumps({**json.loads(told), "type": "session.created"}, separators=(",", ":"))
