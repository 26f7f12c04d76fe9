"""The keeper of one process of a cluster: starts the ``voiceloop`` command, hears it, tells of it.

The process says what it does in lines of JSON on its standard output, and drains when nobody reads
them any more: a keeper that dies takes no call with it. What gateways are to know of workers is put
into a file beside the process, by rename, so that a directory that is lost costs nothing but news.
Keys come from the environment of the keeper's own machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic

import msgspec

from voiceloop.child import ended, restart_pause_s, send, without_settings
from voiceloop.cluster.control.plan import Launch
from voiceloop.cluster.control.reports import (
    MAX_LINE_BYTES,
    REPORT_EVERY_S,
    HostReport,
    HostState,
    Orders,
    ProcessReport,
    ReportError,
    decode_line,
)
from voiceloop.cluster.ray_door import TOKEN
from voiceloop.cluster.worker_list import WorkerList
from voiceloop.errors import VoiceLoopError

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-P", "-m", "voiceloop")
LIST_FILE = "workers.json"
LIST_VARIABLE = "VOICELOOP_WORKERS_LIST"
WITHOUT_TOKEN = {TOKEN: ""}  # what answers callers drives no Ray; empty, Ray takes it for none
ANSWER_WAIT_S = 2.0  # for the directory: one that is being started anew is asked again
STEADY_AFTER_S = 30.0
SILENT_S = 30.0  # a process that says nothing for so long hangs whole
KILL_AFTER_S = 5.0  # of a process that is told to end at once

Ask = Callable[[HostReport], Awaitable[Orders]]


class Keeper:
    """One process across its restarts; ``run`` returns when it was drained and has ended.

    folder: its own, for files. address: this machine's, where the process listens. ask: the
    directory; what it raises, and a silence, is no answer. environ: settings of the process;
    key_names: variables of this machine's environment that it gets besides.
    """

    def __init__(
        self,
        name: str,
        version: str,
        launch: Launch,
        *,
        folder: Path,
        node: str,
        address: str,
        ask: Ask,
        environ: Mapping[str, str],
        key_names: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._name, self._version, self._node = name, version, node
        self._launch = launch
        self._folder = folder
        self._address = address
        self._ask = ask
        keys = {name: os.environ[name] for name in key_names if name in os.environ}
        self._environ = {**keys, **environ}
        self._command = tuple(command)
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._said = ProcessReport("loading")
        self._listed: WorkerList | None = None
        self._drains = asyncio.Event()
        self._n_restarts = 0

    async def run(self) -> None:
        """Keep the process running, and tell the directory of it, until it is drained."""
        self._write_files()
        telling = asyncio.create_task(self._tell_on(), name=f"reports of {self._name}")
        try:
            await self._keep()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await self._end()
            with suppress(OSError, TimeoutError, VoiceLoopError):  # it finds it out by itself else
                async with asyncio.timeout(ANSWER_WAIT_S):
                    await self._ask(self._report(HostState.ENDED))

    # --- the process ---

    async def _keep(self) -> None:
        n_failures = 0
        while not self._drains.is_set():
            began_s = self._clock()
            try:
                process = await self._start()
            except OSError as error:  # no memory, process or descriptor to be had now
                log.error("%s could not be started: %s", self._name, error)
            else:
                await self._live(process)
            if self._drains.is_set():
                return
            if self._clock() - began_s > STEADY_AFTER_S:
                n_failures = 0
            self._n_restarts += 1
            code = self._process.returncode if self._process is not None else None
            self._said = ProcessReport("loading", trouble=f"it ended with exit code {code}")
            pause_s = restart_pause_s(n_failures)
            n_failures += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._drains.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        places = {"folder": self._folder, "address": self._address, "version": self._version}
        arguments = [text.format_map(places) for text in self._launch.arguments]
        own = {LIST_VARIABLE: str(self._folder / LIST_FILE)} if not self._is_worker else {}
        starting = asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=2 * MAX_LINE_BYTES,
            start_new_session=True,  # what is sent to our group is ours to answer
            env={**without_settings(), **self._environ, **own} | WITHOUT_TOKEN,
        )
        task = asyncio.ensure_future(starting)
        try:
            self._process = await asyncio.shield(task)
        except asyncio.CancelledError:
            self._process = await task  # it is there, and has to be ended
            raise
        return self._process

    @property
    def _is_worker(self) -> bool:
        return self._launch.arguments[:1] == ("worker",)

    async def _live(self, process: asyncio.subprocess.Process) -> None:
        """Return once the process has ended. One that hangs is killed; draining is asked for."""
        draining = asyncio.create_task(self._ask_to_drain(process))
        try:
            while await self._hear(process):
                pass
            send(process, signal.SIGKILL)  # it has closed its output: it ends, or hangs
            await process.wait()
        finally:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)

    async def _hear(self, process: asyncio.subprocess.Process) -> bool:
        """Take one line; False where there will be none any more."""
        assert process.stdout is not None
        try:
            async with asyncio.timeout(SILENT_S):
                line = await process.stdout.readline()
        except TimeoutError:
            log.error("%s has said nothing for %.0f s and is killed", self._name, SILENT_S)
            return False
        except ValueError as error:  # a line beyond the limit
            log.warning("%s: expected a line, found %s", self._name, error)
            return True
        if not line:
            return False
        try:
            self._said = decode_line(line)
        except ReportError as error:
            log.warning("%s: %s", self._name, error)
        return True

    async def _ask_to_drain(self, process: asyncio.subprocess.Process) -> None:
        await self._drains.wait()
        send(process, signal.SIGTERM)

    async def _end(self) -> None:
        """End a keeper that is given up: nothing of it stays behind."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        send(process, signal.SIGTERM)
        await ended(process, KILL_AFTER_S)

    # --- the directory ---

    async def _tell_on(self) -> None:
        while True:
            try:
                async with asyncio.timeout(ANSWER_WAIT_S):
                    orders = await self._ask(self._report())
            except (OSError, TimeoutError, VoiceLoopError) as error:
                log.info("%s: the directory does not answer (%s)", self._name, error)
            else:
                self._obey(orders)
            await asyncio.sleep(REPORT_EVERY_S)

    def _report(self, state: HostState | None = None) -> HostReport:
        is_running = self._process is not None and self._process.returncode is None
        pid = self._process.pid if is_running and self._process is not None else 0
        told = state or self._state()
        return HostReport(self._name, self._node, told, self._said, self._n_restarts, pid)

    def _state(self) -> HostState:
        if self._drains.is_set() or self._said.state == "draining":
            return HostState.DRAINING
        return HostState.READY if self._said.state == "ready" else HostState.STARTING

    def _obey(self, orders: Orders) -> None:
        if orders.workers is not None and orders.workers != self._listed:
            self._listed = orders.workers
            _write(self._folder / LIST_FILE, msgspec.json.encode(orders.workers))
        if orders.drains:
            self._drains.set()

    def _write_files(self) -> None:
        for name, text in self._launch.files.items():
            _write(self._folder / name, text.encode())
        if not self._is_worker:
            _write(self._folder / LIST_FILE, msgspec.json.encode(WorkerList()))


def _write(path: Path, data: bytes) -> None:
    """Replace a file by a rename, so that a reader finds the old text or the new one. Mode 600."""
    beside = path.with_suffix(".new")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    beside.replace(path)
