"""The signals that end a server, as something to wait for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Stop:
    """SIGTERM, SIGINT and a terminal that goes; each ``wait`` is for the next one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Listen for signals; only the main thread can."""
        loop = asyncio.get_running_loop()
        handled: list[signal.Signals] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            try:
                loop.add_signal_handler(number, self._event.set)
            except (ValueError, RuntimeError):
                continue
            handled.append(number)
        try:
            yield
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
