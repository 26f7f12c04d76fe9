"""A limit on a tool: at most so many calls at once, and at most so many that wait for one to
end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from voiceloop.tools.executor import ToolFailed

# Over all calls of the server: as many as one session may have open (`pending.MAX_OPEN`). A service
# or a function that takes fewer refuses the others, or takes a lock.
AT_ONCE = 32
# Chosen: of calls that take a quarter of their deadline each, so many more are served in time.
WAITING_PER_CALL = 4


class CallLimit:
    """The limit of one tool, over all calls of the server. First come, first served."""

    def __init__(self, tool: str, n_at_once: int = AT_ONCE) -> None:
        self._tool = tool
        self._free = asyncio.Semaphore(n_at_once)
        self._n_waiting = 0
        self._n_waiting_most = n_at_once * WAITING_PER_CALL

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Hold one place. Raises: ToolFailed at once, where too many wait already."""
        if self._free.locked() and self._n_waiting >= self._n_waiting_most:
            raise ToolFailed(
                f"{self._tool}: expected a free place, found {self._n_waiting} calls waiting",
                told="too busy at the moment",
                is_unsent=True,
            )
        self._n_waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._n_waiting -= 1
        try:
            yield
        finally:
            self._free.release()
