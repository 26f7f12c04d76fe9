"""An agent's class on the gateway's side: its methods are tools and hooks of each call.

Owns the process that holds the class and, of each call, the line to the process that was forked for
it. A method that is late costs its own turn: a process that does not stop is killed, and the call's
next method finds a new instance, `MOST_FORKS` times.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec

from voiceloop.child import kill_group, without_settings
from voiceloop.errors import ConfigError
from voiceloop.tools.agent_host import FORK, KILL, ORDER, READY
from voiceloop.tools.caller import NOBODY, Caller
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_messages import (
    HEADER_BYTES,
    Abandon,
    Call,
    Ready,
    Returned,
    answer_of,
    length_of,
    packed,
)
from voiceloop.tools.python_tool import ABANDON_S, START_S

log = logging.getLogger(__name__)

MOST_FORKS = 4  # of one call: its first process, and three in place of such as did not stop
FORK_S = 5.0  # a fork takes a millisecond; a machine that swaps takes longer
END_S = 2.0  # for `on_end`


class CallProcess:
    """The process of one call, and the methods that it works on. on_stuck: told where one of them
    was given up and does not stop.
    """

    def __init__(
        self, number: int, line: socket.socket, on_stuck: Callable[[CallProcess], None]
    ) -> None:
        self.number = number
        self._on_stuck = on_stuck
        self.begun = asyncio.create_task(self._begin(), name="fork of a call's class")
        self._line = line
        self._numbers = count()
        self._open: dict[int, asyncio.Future[Returned]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def _begin(self) -> None:
        """Raises: ToolFailed: it does not come about."""
        try:
            async with asyncio.timeout(FORK_S):
                reader, self._writer = await asyncio.open_connection(sock=self._line)
                answer = await _read(reader)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            told = f"a call's process did not start ({type(error).__name__})"
            raise ToolFailed(told, told="failed", is_unsent=True) from None
        if not isinstance(answer, Ready) or answer.problem:
            raise ToolFailed("the class of a call could not be made", told="failed")
        self._reading = asyncio.create_task(self._follow(reader), name="agent class")

    async def run(self, method: str, arguments: Mapping[str, Any], caller: Caller) -> Returned:
        """Raises: ToolFailed."""
        await asyncio.shield(self.begun)
        assert self._writer is not None
        if self.has_ended:
            raise ToolFailed("the call's process has ended", told="failed", is_unsent=True)
        number = next(self._numbers)
        try:
            message = packed(Call(number, dict(arguments), caller.told(), method))
        except ValueError as error:
            raise ToolFailed(
                str(error), told="the arguments were too long", is_unsent=True
            ) from None
        result: asyncio.Future[Returned] = asyncio.get_running_loop().create_future()
        self._open[number] = result
        self._writer.write(message)
        try:
            return await result
        except asyncio.CancelledError:
            self._writer.write(packed(Abandon(number)))
            asyncio.get_running_loop().call_later(ABANDON_S, self._check, number)
            raise
        finally:
            if result.done() and not result.cancelled():
                self._open.pop(number, None)

    def _check(self, number: int) -> None:
        """A method that was given up is over by now, or the process is stuck."""
        if number in self._open and not self.has_ended:
            self._on_stuck(self)

    @property
    def has_ended(self) -> bool:
        if self._reading is None:
            return self.begun.done()
        return self._reading.done()

    def close(self) -> None:
        self.begun.cancel()
        if self._reading is not None:
            self._reading.cancel()
        if self._writer is not None:
            self._writer.close()
        else:
            self._line.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = await _read(reader)
                if not isinstance(answer, Returned):
                    continue
                result = self._open.pop(answer.number, None)
                if result is None or result.done():
                    continue
                if answer.problem:
                    told = f"a method of a class failed: {answer.problem}"
                    result.set_exception(ToolFailed(told, told="failed"))
                else:
                    result.set_result(answer)
        except (asyncio.IncompleteReadError, OSError, ValueError, msgspec.DecodeError):
            pass
        finally:
            for result in self._open.values():
                if not result.done():
                    told = "the process of a call's class ended"
                    result.set_exception(ToolFailed(told, told="failed"))


async def _read(reader: asyncio.StreamReader) -> Ready | Returned:
    """Raises: asyncio.IncompleteReadError, ValueError, msgspec.DecodeError."""
    header = await reader.readexactly(HEADER_BYTES)
    return answer_of(await reader.readexactly(length_of(header)))


class AgentClass:
    """One class of an agent's, for all calls of a server. spec: as `python` of its file."""

    def __init__(self, spec: str, folder: str, *, has_network: bool) -> None:
        self.spec = spec
        self.hooks: frozenset[str] = frozenset()  # those that the class has, once it is there
        self._folder = folder
        self._has_network = has_network
        self._process: Process | None = None
        self._orders: socket.socket | None = None
        self._numbers = count(1)
        self._calls: dict[str, CallProcess] = {}
        self._n_forks: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Idempotent. Raises: ConfigError: the class is not there."""
        async with self._lock:
            if self._process is not None and self._process.returncode is None:
                return
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "voiceloop.tools.agent_host", self.spec, self._folder,
                    "network" if self._has_network else "", str(theirs.fileno()),
                    stdin=DEVNULL, env=without_settings(), pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )  # fmt: skip
            ours.setblocking(False)
            self._orders = ours
            loop = asyncio.get_running_loop()
            try:
                async with asyncio.timeout(START_S):
                    told = await loop.sock_recv(ours, 512)
            except TimeoutError:
                told = b" its process did not start"
        if told.startswith(READY):
            self.hooks = frozenset(told[1:].decode().split(","))
        else:
            problem = told[1:].decode("utf-8", "replace") or "its process ended"
            await self.close()
            raise ConfigError(f"python: expected the class {self.spec!r}, found: {problem}")

    def open(self, caller: Caller) -> None:
        """A call begins: its methods may run until its `end`."""
        self._n_forks[caller.call] = 0

    async def run(self, method: str, arguments: Mapping[str, Any], caller: Caller) -> Returned:
        """A method of the call that `caller.call` names. Raises: ToolFailed."""
        known = self._calls.get(caller.call)
        if known is None:
            known = await self._fork(caller)
        elif known.has_ended:
            known = await self._renew(known, caller)
        return await known.run(method, arguments, caller)

    async def _renew(self, ended: CallProcess, caller: Caller) -> CallProcess:
        """A new instance for a call whose process has ended, or does not stop.

        Raises: ToolFailed: it has had too many.
        """
        log.warning("a call's process of %s did not stop, or ended: a new instance", self.spec)
        self._kill(ended)
        process = await self._fork(caller)
        with suppress(ToolFailed, TimeoutError):
            async with asyncio.timeout(FORK_S):
                await process.run("on_call", {}, caller)
        return process

    def _replace(self, stuck: CallProcess, caller: Caller) -> None:
        """Have the next turn find an instance that answers."""
        if self._calls.get(caller.call) is not stuck:
            return

        async def renew() -> None:
            with suppress(ToolFailed):
                await self._renew(stuck, caller)

        task = asyncio.create_task(renew(), name="a call's new instance")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _fork(self, caller: Caller) -> CallProcess:
        call_id = caller.call
        await self.start()
        if call_id not in self._n_forks:  # nobody would end another process of it
            raise ToolFailed("the call has ended", told="failed", is_unsent=True)
        if (known := self._calls.get(call_id)) is not None and not known.has_ended:
            return known  # made while this waited
        if self._n_forks[call_id] >= MOST_FORKS:
            told = f"the class of a call was made {MOST_FORKS} times"
            raise ToolFailed(told, told="failed", is_unsent=True)
        self._n_forks[call_id] += 1
        ours, theirs = socket.socketpair()
        process = CallProcess(next(self._numbers), ours, lambda stuck: self._replace(stuck, caller))
        with theirs:
            self._order(FORK, process.number, theirs)
        self._calls[call_id] = process
        return process

    def _order(self, what: bytes, number: int, line: socket.socket | None = None) -> None:
        assert self._orders is not None
        try:
            message = [ORDER.pack(what, number)]
            socket.send_fds(self._orders, message, [line.fileno()] if line is not None else [])
        except OSError as error:
            told = f"the process of {self.spec} takes no order ({type(error).__name__})"
            raise ToolFailed(told, told="failed", is_unsent=True) from None

    def _kill(self, process: CallProcess) -> None:
        process.close()
        try:
            self._order(KILL, process.number)
        except ToolFailed as error:
            log.warning("%s", error.message)

    def end(self, caller: Caller) -> None:
        """The call is over: its `on_end` has `END_S`, and nobody waits for it."""
        if (process := self._calls.pop(caller.call, None)) is not None:
            task = asyncio.create_task(self._end(process, caller), name="end of a call's class")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._n_forks.pop(caller.call, None)

    async def _end(self, process: CallProcess, caller: Caller) -> None:
        try:
            async with asyncio.timeout(END_S):
                await process.run("on_end", {}, caller)
        except (TimeoutError, ToolFailed) as error:
            log.warning("on_end of %s failed (%s)", self.spec, type(error).__name__)
        finally:
            self._kill(process)

    async def close(self) -> None:
        """Idempotent."""
        await asyncio.gather(*self._ending, return_exceptions=True)
        for process in self._calls.values():
            process.close()
        self._calls.clear()
        if self._orders is not None:
            self._orders.close()
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process)
            await self._process.wait()


class MethodTool:
    """`Executor` of a tool that is a method of the agent's class."""

    is_told = True

    def __init__(self, method: str, of: AgentClass) -> None:
        self._method = method
        self._of = of

    @property
    def source(self) -> str:
        return self._of.spec

    async def start(self) -> None:
        """Raises: ConfigError."""
        await self._of.start()

    async def run(self, key: str, arguments: Mapping[str, Any], caller: Caller = NOBODY) -> str:
        """Raises: ToolFailed."""
        return (await self._of.run(self._method, arguments, caller)).text

    async def close(self) -> None:
        await self._of.close()
