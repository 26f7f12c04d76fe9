"""A tool that is a Python function of the author's, run in a process of its own.

Owns those processes: each without VoiceLoop's own variables, in a group of its own that ends with
it, and bounded as ``cell.py`` says. A function that blocks, crashes or leaks takes no call down and
delays no frame of sound. One that does not stop when its call is abandoned keeps the process from
new calls: those get another one, and the first is ended with the last call that is not abandoned. A
call with side effects is abandoned only at the toolbox's bound of a minute, not when nobody waits
any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from itertools import count
from typing import Any

import msgspec

from voiceloop.child import kill_group, without_settings
from voiceloop.errors import ConfigError
from voiceloop.tools.caller import NOBODY, Caller
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

log = logging.getLogger(__name__)

START_S = 30.0  # an import of a large library from a cold disk, as the workers' own allowance
# An abandoned call that has not stopped by then does not listen: a coroutine stops at its next
# await, a function that blocks not at all.
ABANDON_S = 1.0


class FunctionProcess:
    """One process, and the calls it works on. It ends with its last call once it is `retire`d."""

    def __init__(self, process: Process, spec: str) -> None:
        self._process = process
        self._spec = spec
        self._numbers = count()
        self._open: dict[int, asyncio.Future[str]] = {}
        self._abandoned: set[int] = set()
        self._reading: asyncio.Task[None] | None = None
        self.is_taking = True  # new calls
        self.is_told = True  # of the caller; `begin` knows better

    async def begin(self) -> None:
        """Wait for the function. Raises: ConfigError."""
        try:
            async with asyncio.timeout(START_S):
                answer = await self._read()
        except (TimeoutError, asyncio.IncompleteReadError, ValueError):
            answer = Ready(problem="its process did not start")
        if not isinstance(answer, Ready) or answer.problem:
            await self.end()
            problem = answer.problem if isinstance(answer, Ready) else "another message"
            raise ConfigError(f"python: expected the function {self._spec!r}, found: {problem}")
        self.is_told = answer.is_told
        self._reading = asyncio.create_task(self._follow(), name=f"tool {self._spec}")

    async def run(self, arguments: Mapping[str, Any], caller: Caller) -> str:
        """Raises: ToolFailed."""
        number = next(self._numbers)
        result: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        try:
            told = caller.told() if self.is_told else {}
            message = packed(Call(number, dict(arguments), told))
        except ValueError as error:
            raise ToolFailed(
                str(error), told="the arguments were too long", is_unsent=True
            ) from None
        self._open[number] = result
        self._write(message)
        try:
            return await result
        except asyncio.CancelledError:
            self._abandon(number)
            raise
        finally:
            self._open.pop(number, None)
            self._end_if_idle()

    def _abandon(self, number: int) -> None:
        self._abandoned.add(number)
        self._write(packed(Abandon(number)))
        asyncio.get_running_loop().call_later(ABANDON_S, self._check, number)

    def _check(self, number: int) -> None:
        if number in self._abandoned and self.is_taking:
            log.warning("a call of %s does not stop; its process takes no more", self._spec)
            self.retire()

    def retire(self) -> None:
        self.is_taking = False
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if not self.is_taking and not self._open and not self.has_ended:
            kill_group(self._process)

    async def end(self) -> None:
        """Idempotent."""
        self.is_taking = False
        if not self.has_ended:  # its number may be another's by now
            kill_group(self._process)
        await self._process.wait()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        assert self._process.stdin is not None
        self._process.stdin.close()

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def _write(self, message: bytes) -> None:
        # Not drained: `CallLimit` bounds the calls, `read_arguments` each of them.
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(message)

    async def _follow(self) -> None:
        problem = "its process ended"
        try:
            while True:
                answer = await self._read()
                if isinstance(answer, Returned):
                    self._settle(answer)
        except asyncio.IncompleteReadError:
            pass
        except (ValueError, msgspec.DecodeError) as error:
            problem = f"its process wrote what is no message ({error})"
        finally:
            self.is_taking = False
            kill_group(self._process)
            for number in list(self._open):
                self._settle(Returned(number, problem=problem))

    def _settle(self, answer: Returned) -> None:
        self._abandoned.discard(answer.number)
        result = self._open.get(answer.number)
        if result is None or result.done():
            return
        if answer.problem:
            # A function of somebody's own may fail for any reason: none that trying again mends.
            message = f"{self._spec}: expected a result, found {answer.problem}"
            result.set_exception(ToolFailed(message, told="failed"))
        else:
            result.set_result(answer.text)

    async def _read(self) -> Answer:
        assert self._process.stdout is not None
        header = await self._process.stdout.readexactly(HEADER_BYTES)
        return answer_of(await self._process.stdout.readexactly(length_of(header)))


class PythonTool:
    """One tool's executor; see `Executor`.

    spec: ``module:function``. folder: where the module is looked for first; "": where the server
    was started. has_network: it may open sockets beyond this machine's own (AF_UNIX).
    """

    def __init__(
        self, name: str, spec: str, folder: str = "", *, has_network: bool = False
    ) -> None:
        self.source = f"python:{spec.partition(':')[0]}"
        self.is_told = True  # until the function has said that it takes no caller
        self._name = name
        self._spec = spec
        self._folder = folder
        self._has_network = has_network
        self._current: FunctionProcess | None = None
        self._retired: list[FunctionProcess] = []
        self._starting: asyncio.Task[FunctionProcess] | None = None
        self._is_closed = False

    async def start(self) -> None:
        try:
            await self._process()
        except ConfigError as error:
            raise ConfigError(f"tool {self._name!r}: {error.message}") from None

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        try:
            process = await self._process()
        except (ConfigError, OSError) as error:
            message = f"{self._spec}: expected its process, found: {error}"
            raise ToolFailed(message, told="failed", is_unsent=True) from None
        return await process.run(arguments, caller)

    async def close(self) -> None:
        self._is_closed = True
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        ending = [*self._retired, *([self._current] if self._current else [])]
        self._retired, self._current = [], None
        await asyncio.gather(*(process.end() for process in ending))

    async def _process(self) -> FunctionProcess:
        """One that takes calls. Raises: ConfigError, OSError."""
        if self._current is not None and self._current.is_taking:
            return self._current
        if self._is_closed:
            raise ConfigError("the tools are closed")
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._begin(), name=f"start {self._spec}")
        # A start may take longer than a call may: it goes on, and serves the next one.
        return await asyncio.shield(self._starting)

    async def _begin(self) -> FunctionProcess:
        if self._current is not None:
            self._retired.append(self._current)
            self._current = None
        over = [process for process in self._retired if process.has_ended]
        self._retired = [process for process in self._retired if not process.has_ended]
        await asyncio.gather(*(process.end() for process in over))
        process = FunctionProcess(
            await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "voiceloop.tools.python_host",
                self._spec, self._folder, "network" if self._has_network else "",
                stdin=PIPE, stdout=PIPE, start_new_session=True, env=without_settings(),
            ),
            self._spec,
        )  # fmt: skip
        await process.begin()
        self._current = process
        self.is_told = process.is_told
        return process
