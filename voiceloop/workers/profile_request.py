"""The profile that a worker is making: at most one, bounded in time, and lost with the process."""

from __future__ import annotations

import asyncio

from voiceloop.errors import BackendRefused, BackendTimeout, Overloaded, WorkerLost
from voiceloop.workers.messages import Profiled

# Two seconds of small operations took 10 s to write, 138 MB, on a busy machine; ten seconds of them
# are the most that is asked for. The worker says nothing meanwhile: torch holds the interpreter.
WRITTEN_S = 120.0


class ProfileRequest:
    """Of one worker process, of this name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: asyncio.Future[Profiled] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._told is not None

    def begin(self) -> None:
        """Before the worker is asked. Raises: Overloaded while another is under way."""
        if self._told is not None:
            raise Overloaded(f"expected no other profile of the worker {self._name}, found one")
        self._told = asyncio.get_running_loop().create_future()

    async def written(self, seconds: float) -> None:
        """Wait for the trace of so many seconds.

        Raises: BackendRefused when it cannot be written, BackendTimeout, WorkerLost.
        """
        assert self._told is not None
        try:
            async with asyncio.timeout(seconds + WRITTEN_S):
                told = await self._told
        except TimeoutError:
            text = f"expected a trace of the worker {self._name}, found none"
            raise BackendTimeout(text) from None
        finally:
            self._told = None
        if told.error:
            raise BackendRefused(f"worker {self._name}: {told.error}")

    def answer(self, told: Profiled) -> None:
        if self._told is not None and not self._told.done():
            self._told.set_result(told)

    def lose(self) -> None:
        """The process has died."""
        if self._told is not None and not self._told.done():
            self._told.set_exception(WorkerLost(f"the worker {self._name} died meanwhile"))
