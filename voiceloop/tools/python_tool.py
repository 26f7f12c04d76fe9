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
from typing import Any

from voiceloop.child import kill_group, without_settings
from voiceloop.errors import ConfigError
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_line import HostLine

log = logging.getLogger(__name__)

START_S = 30.0  # an import of a large library from a cold disk, as the workers' own allowance


class FunctionProcess:
    """One process. It ends with its last call once it is retired."""

    def __init__(self, process: Process, spec: str) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process = process
        self._spec = spec
        self._is_retired = False
        self.line = HostLine(
            spec, process.stdout, process.stdin, self._retire, lambda: kill_group(process.pid)
        )

    async def begin(self) -> None:
        """Wait for the function. Raises: ConfigError."""
        if problem := await self.line.begin(START_S):
            await self.end()
            raise ConfigError(f"python: expected the function {self._spec!r}, found: {problem}")

    async def run(self, arguments: Mapping[str, Any], caller: Caller) -> str:
        """Raises: ToolFailed."""
        try:
            return (await self.line.run(arguments, caller)).text
        finally:
            self._end_if_idle()

    @property
    def is_taking(self) -> bool:
        """Whether it takes new calls."""
        return not (self._is_retired or self.line.has_ended)

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    def _retire(self) -> None:
        if not self._is_retired:
            log.warning("a call of %s does not stop; its process takes no more", self._spec)
            self._is_retired = True
            self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_retired and self.line.is_idle and not self.has_ended:
            kill_group(self._process.pid)

    async def end(self) -> None:
        """Idempotent."""
        self._is_retired = True
        if not self.has_ended:  # its number may be another's by now
            kill_group(self._process.pid)
        await self._process.wait()
        self.line.close()


class PythonTool:
    """One tool; see `Run`.

    spec: ``module:function``. folder: where the module is looked for first; "": where the server
    was started. has_network: it may open sockets beyond this machine's own (AF_UNIX).
    """

    def __init__(
        self, name: str, spec: str, folder: str = "", *, has_network: bool = False
    ) -> None:
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
        return process
