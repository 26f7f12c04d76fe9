"""The gateway's end of the line to a process with an author's code: calls go out, answers come.

Owns the calls without an answer, and finds out that one which nobody waits for does not stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from voiceloop.tools.caller import Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_messages import (
    HEADER_BYTES,
    Abandon,
    Answer,
    Call,
    Ready,
    Returned,
    answer_of,
    length_of,
    packed,
)

# An abandoned call that has not stopped by then does not listen: a coroutine stops at its next
# await, a function that blocks not at all.
ABANDON_S = 1.0


class HostLine:
    """`begin`, then `run` until it `has_ended`. spec: for errors.

    on_stuck: told where a call that was given up does not stop. on_end: the far end is gone.
    """

    def __init__(
        self,
        spec: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_stuck: Callable[[], None],
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._spec = spec
        self._reader = reader
        self._writer = writer
        self._on_stuck = on_stuck
        self._on_end = on_end
        self._numbers = count()
        self._open: dict[int, asyncio.Future[Returned]] = {}
        self._abandoned: set[int] = set()
        self._following: asyncio.Task[None] | None = None
        self.is_told = True  # of the caller; `begin` knows better

    async def begin(self, within_s: float) -> str:
        """Wait for what the process serves. Returns why it is not there; "" where it is."""
        try:
            async with asyncio.timeout(within_s):
                answer = await self._read()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, ValueError):
            return "its process did not start"
        if not isinstance(answer, Ready):
            return "another message"
        self.is_told = answer.is_told
        if not answer.problem:
            self._following = asyncio.create_task(self._follow(), name=f"line to {self._spec}")
        return answer.problem

    async def run(self, arguments: Mapping[str, Any], caller: Caller, method: str = "") -> Returned:
        """One call; cancelled, it is given up. Raises: ToolFailed."""
        number = next(self._numbers)
        told = caller.told() if self.is_told else {}
        try:
            message = packed(Call(number, dict(arguments), told, method))
        except ValueError as error:
            raise ToolFailed(
                str(error), told="the arguments were too long", is_unsent=True
            ) from None
        if self.has_ended:
            raise self._failed("its process ended", is_unsent=True)
        result: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        self._open[number] = result
        self._write(message)
        try:
            return await result
        except asyncio.CancelledError:
            self._abandoned.add(number)
            self._write(packed(Abandon(number)))
            asyncio.get_running_loop().call_later(ABANDON_S, self._check, number)
            raise
        finally:
            self._open.pop(number, None)

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._open

    @property
    def has_ended(self) -> bool:
        return self._following is None or self._following.done()

    def close(self) -> None:
        """Idempotent; calls under way fail."""
        if self._following is not None:
            self._following.cancel()
        self._writer.close()

    def _check(self, number: int) -> None:
        if number in self._abandoned and not self.has_ended:
            self._on_stuck()

    def _write(self, message: bytes) -> None:
        # Not drained: `CallLimit` bounds the calls, `read_arguments` each of them.
        if not self._writer.is_closing():
            self._writer.write(message)

    async def _follow(self) -> None:
        problem = "its process ended"
        try:
            while True:
                answer = await self._read()
                if isinstance(answer, Returned):
                    self._settle(answer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except (ValueError, msgspec.DecodeError) as error:
            problem = f"its process wrote what is no message ({error})"
        finally:
            self._on_end()
            for number in list(self._open):
                self._settle(Returned(number, problem=problem))

    def _settle(self, answer: Returned) -> None:
        self._abandoned.discard(answer.number)
        result = self._open.get(answer.number)
        if result is None or result.done():
            return
        if answer.problem:
            # An author's code may fail for any reason: none that trying again mends.
            result.set_exception(self._failed(answer.problem))
        else:
            result.set_result(answer)

    def _failed(self, found: str, *, is_unsent: bool = False) -> ToolFailed:
        message = f"{self._spec}: expected a result, found {found}"
        return ToolFailed(message, told="failed", is_unsent=is_unsent)

    async def _read(self) -> Answer:
        header = await self._reader.readexactly(HEADER_BYTES)
        return answer_of(await self._reader.readexactly(length_of(header)))
