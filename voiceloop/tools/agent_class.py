"""An agent's class on the gateway's side: its methods are tools and hooks of each call.

Owns the process that holds the class and, of each call, the line to the process that was forked for
it. An instance is made by its `on_call`, which every other method waits for, each as long as it
may. A method that is late costs its own turn: a process that does not stop is killed, and the
call's next method finds a new instance, `MOST_FORKS` times.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from voiceloop.child import kill_group, without_settings
from voiceloop.errors import ConfigError
from voiceloop.python_agent import HandOff
from voiceloop.tools.agent_host import FORK, KILL, ORDER, READY
from voiceloop.tools.caller import Caller
from voiceloop.tools.executor import Run, ToolFailed
from voiceloop.tools.python_line import HostLine
from voiceloop.tools.python_messages import Returned
from voiceloop.tools.python_tool import START_S

log = logging.getLogger(__name__)

MOST_FORKS = 4  # of one call: its first process, and three in place of such as did not stop
FORK_S = 5.0  # a fork takes a millisecond; a machine that swaps takes longer
MAKE_S = 5.0  # for `on_call`, whose greeting nobody waits for any more; then another is made
ON_CALL = "on_call"
END_S = 2.0  # for `on_end`


class CallProcess:
    """The process of one call. on_stuck: told where a method was given up and does not stop."""

    def __init__(
        self,
        number: int,
        line: socket.socket,
        caller: Caller,
        on_stuck: Callable[[CallProcess], None],
    ) -> None:
        self.number = number
        self._socket = line
        self._on_stuck = on_stuck
        # Tasks of their own: a hook that is too late to see their end leaves them to the next one.
        self._begun = asyncio.create_task(self._begin(), name="fork of a call's class")
        self.made = asyncio.create_task(self._make(caller), name="on_call of a call's class")

    async def _make(self, caller: Caller) -> Returned | ToolFailed:
        """Return what `on_call` returned, or why it did not."""
        try:
            line = await asyncio.shield(self._begun)
            async with asyncio.timeout(MAKE_S):
                return await line.run({}, caller, ON_CALL)
        except ToolFailed as error:
            return error
        except asyncio.CancelledError:  # by `close`; who waits for this is not cancelled
            return ToolFailed("the call's class has ended", told="failed", is_unsent=True)
        except TimeoutError:
            self._on_stuck(self)  # a coroutine has stopped in its middle
            return ToolFailed(f"a call's class: no instance in {MAKE_S:g} s", told="failed")

    async def _begin(self) -> HostLine:
        """Raises: ToolFailed: it does not come about."""
        line = None
        try:
            streams = await asyncio.open_connection(sock=self._socket)
            line = HostLine("a call's class", *streams, lambda: self._on_stuck(self))
            if not (problem := await line.begin(FORK_S)):
                return line
        except OSError as error:
            problem = type(error).__name__
        finally:
            if line is not None and line.has_ended:
                line.close()
        told = f"a call's class: expected an instance, found: {problem}"
        raise ToolFailed(told, told="failed", is_unsent=True)

    async def run(self, method: str, arguments: Mapping[str, Any], caller: Caller) -> Returned:
        """Raises: ToolFailed."""
        made = await asyncio.shield(self.made)
        line = self._line
        if isinstance(made, ToolFailed) and (method == ON_CALL or line is None):
            raise made
        if isinstance(made, Returned) and method == ON_CALL:
            return made
        assert line is not None
        return await line.run(arguments, caller, method)

    @property
    def _line(self) -> HostLine | None:
        begun = self._begun
        is_there = begun.done() and not begun.cancelled() and begun.exception() is None
        return begun.result() if is_there else None

    @property
    def has_ended(self) -> bool:
        return self._begun.done() and (self._line is None or self._line.has_ended)

    def close(self) -> None:
        self.made.cancel()
        if (line := self._line) is not None:
            line.close()
        else:
            self._begun.cancel()
            self._socket.close()


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
            if self._takes_orders():
                return
            self._close_orders()  # to one that has died
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

    def _takes_orders(self) -> bool:
        """Whether its process is there. That it ended is told by its socket before its code is."""
        if self._process is None or self._process.returncode is not None or self._orders is None:
            return False
        try:
            return self._orders.recv(1, socket.MSG_PEEK) != b""
        except OSError as error:
            return isinstance(error, BlockingIOError)

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

    def runs(self, method: str) -> Run:
        """A tool that is this method."""

        async def run(key: str, arguments: Mapping[str, Any], caller: Caller) -> str | HandOff:
            returned = await self.run(method, arguments, caller)
            return returned.hand_off or returned.text

        return run

    async def _renew(self, ended: CallProcess, caller: Caller) -> CallProcess:
        """A new instance for a call whose process has ended, or does not stop.

        Raises: ToolFailed: it has had too many.
        """
        log.warning("a call's process of %s did not stop, or ended: a new instance", self.spec)
        self._kill(ended)
        return await self._fork(caller)

    def _replace(self, stuck: CallProcess, caller: Caller) -> None:
        """Have the next turn find an instance that answers."""
        if self._calls.get(caller.call) is not stuck:
            return

        async def renew() -> None:
            with suppress(ToolFailed):
                await self._renew(stuck, caller)

        self._keep(renew(), "a call's new instance")

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
        process = CallProcess(
            next(self._numbers), ours, caller, lambda stuck: self._replace(stuck, caller)
        )
        with theirs:
            self._order(FORK, process.number, theirs)
        self._calls[call_id] = process
        return process

    def _order(self, what: bytes, number: int, line: socket.socket | None = None) -> None:
        try:
            if self._orders is None:
                raise ConnectionError
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
        """The call is over: behind its `on_call` its `on_end` has `END_S`, and nobody waits."""
        if (process := self._calls.pop(caller.call, None)) is not None:
            self._keep(self._end(process, caller), "end of a call's class")
        self._n_forks.pop(caller.call, None)

    def _keep(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Have it done before `close`, which waits for it."""
        task = asyncio.create_task(work, name=name)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, process: CallProcess, caller: Caller) -> None:
        await asyncio.wait([process.made])  # at most `MAKE_S` more: the call may have been short
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
        for call in self._calls.values():
            call.close()
        self._calls.clear()
        # Its processes end with the line to the first, which kills what calls have started.
        self._close_orders()
        if (process := self._process) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
            if process.returncode is None:
                kill_group(process.pid)
                await process.wait()

    def _close_orders(self) -> None:
        if self._orders is not None:
            self._orders.close()
            self._orders = None
