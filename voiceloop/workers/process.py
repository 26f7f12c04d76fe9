"""Runs one worker process: starts it, watches its heartbeats, kills it when it hangs, restarts it.

A worker says Ready once its models are loaded and warm. From then on its step loop must send
heartbeats. It hangs if it is silent for two seconds (``hung_after_s``) and computes nothing; it
spins if it computes and is silent for fifteen. Time that it waits for a processor does not count.
Before a kill its stacks go to the log. A worker that dies is restarted without end, with growing
pauses, whatever the reason was.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from time import monotonic

import msgspec
from msgspec.structs import replace

from voiceloop.backends import RoleName
from voiceloop.child import ended, restart_pause_s, send, without_settings
from voiceloop.errors import BackendRefused, VoiceLoopError, WorkerLost
from voiceloop.operation import WorkerLoad
from voiceloop.workers.client import WorkerClient, WorkerConnection
from voiceloop.workers.heartbeat import (
    ThreadTimes,
    Verdict,
    WorkerSilence,
    peak_memory_mb,
    thread_times,
)
from voiceloop.workers.messages import Fault, LoadFailed, Loading, WorkerSpec
from voiceloop.workers.status import RoleState, WorkerState, load_of, states_of

log = logging.getLogger(__name__)

WATCH_EVERY_S = 0.25
# A worker may load for as long as its disk and its share of the processors make it: it hangs once
# it has come no further for this long of its own doing. Where the system does not tell how much
# memory it fills, an 8B model must be read from a cold disk within this.
LOAD_SILENCE_S = 300.0
CLOSE_DEADLINE_S = 2.0
STACKS_S = 0.2  # for a worker to write its stacks before it is killed
# A worker up for this long has recovered, and the next pause is short again: starting the embedded
# engine takes four seconds, so that one lost every ten would serve for most of the time.
STEADY_AFTER_S = 10.0


Progress = Callable[[RoleState], None]


# What a driver or a kernel's compiler ends a process with.
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)


class RestartCause(Enum):
    """The reason for starting a worker anew."""

    EXIT = "exit"  # it ended by itself, or was killed by somebody else
    HUNG = "hung"
    SPIN = "spin"
    LOAD = "load"  # a start before this one did not come to its end
    FAULT = "fault"  # its device failed, and it goes on one step lower
    SPAWN = "spawn"  # there was no process, memory or descriptor to be had for one


HANGS = (RestartCause.HUNG, RestartCause.SPIN)


@dataclass(frozen=True, slots=True)
class Entry:
    """The module a worker process runs, with what it takes beside its socket and its roles.

    descriptors: that it inherits.
    """

    module: str = "voiceloop.workers.worker"
    arguments: tuple[str, ...] = ()
    descriptors: tuple[int, ...] = ()


class WorkerProcess:
    """One worker across its restarts. ``run`` lasts until it is cancelled."""

    def __init__(
        self,
        spec: WorkerSpec,
        *,
        clock: Callable[[], float] = monotonic,
        on_progress: Progress | None = None,
        environ: dict[str, str] | None = None,
        entry: Entry = Entry(),
        thread_times: Callable[[int], Mapping[int, ThreadTimes]] = thread_times,
        peak_memory_mb: Callable[[int], int] = peak_memory_mb,
    ) -> None:
        self.spec = spec
        self.client = WorkerClient(spec.name)
        self.process: asyncio.subprocess.Process | None = None
        self.state: WorkerState = "starting"
        self.restarts: Counter[RestartCause] = Counter()
        self.connection: WorkerConnection | None = None
        self._clock = clock
        self._on_progress = on_progress
        self._environ = environ
        self._entry = entry
        self._thread_times = thread_times
        self._peak_memory_mb = peak_memory_mb

    @property
    def n_restarts(self) -> int:
        return self.restarts.total()

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    async def start(self) -> None:
        """Spawn the process and wait until it is ready; one step lower where the device fails.

        Raises:
            BackendRefused: a role cannot be loaded; the message is the worker's own.
            WorkerLost: the process ended, or hung while loading.
        """
        while True:
            self._set_state("loading")
            try:
                connection = await self._spawn()
                await self._wait_ready(connection)
                break
            except BaseException as error:
                await self.end(at_once=True)
                if not isinstance(error, VoiceLoopError) or not self._step_down():
                    raise
        self.client.attach(connection)
        self._set_state("ready")

    async def run(self) -> None:
        """Watch the started process and replace it whenever it ends, until cancelled."""
        n_short_lives = 0
        while True:
            began_s = self._clock()
            cause = await self._watch()
            if self._clock() - began_s > STEADY_AFTER_S:
                n_short_lives = 0
            await self._start_anew(cause, n_short_lives)
            n_short_lives += 1

    async def _start_anew(self, cause: RestartCause, n_failures: int) -> None:
        """Start until it is ready; the pause before each start grows with the failures so far.

        Those of starts are forgotten once one has come to its end: what kept it out is over.
        """
        while True:
            self._set_state("restarting")
            self.restarts[cause] += 1
            await asyncio.sleep(restart_pause_s(n_failures))
            n_failures += 1
            try:
                await self.start()
                return
            except VoiceLoopError as error:
                log.error("worker %s did not come back: %s", self.spec.name, error)
                cause = RestartCause.LOAD
            except Exception:
                # No memory, no process or no descriptor to be had now may be had later.
                log.exception("worker %s could not be started", self.spec.name)
                cause = RestartCause.SPAWN

    async def end(self, *, at_once: bool = False) -> None:
        """Close the socket, upon which a healthy worker ends; kill it if it does not."""
        self.client.detach()
        if self.connection is not None:
            self.connection.close()
        process = self.process
        if process is None:
            return
        if at_once:
            send(process, signal.SIGKILL)
        if not await ended(process, CLOSE_DEADLINE_S):
            log.error("worker %s (pid %d) does not end though killed", self.spec.name, process.pid)
        self._set_state("stopped")

    def states(self) -> list[RoleState]:
        return states_of(self._roles, self.state, self.connection)

    def load(self) -> WorkerLoad:
        """How busy it is, and how far behind."""
        restarts = {cause.value: n for cause, n in self.restarts.items()}
        return load_of(self.spec.name, self._roles, self.state, restarts, self.connection)

    @property
    def _roles(self) -> list[RoleName]:
        return [role.role for role in self.spec.roles]

    async def _spawn(self) -> WorkerConnection:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        connection = WorkerConnection(self.spec.name, self._clock)
        with theirs:
            await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=ours)
            self.connection = connection
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # a folder called engine/ or audio/ where the user stands must not win
                "-m",
                self._entry.module,
                f"--fd={theirs.fileno()}",
                f"--spec-json={msgspec.json.encode(self.spec).decode()}",
                *self._entry.arguments,
                pass_fds=(theirs.fileno(), *self._entry.descriptors),
                stdin=asyncio.subprocess.DEVNULL,
                # A signal to the whole group is ours to answer: its calls are to end first.
                start_new_session=True,
                env={**without_settings(), **(self._environ or {})},
            )
        return connection

    async def _wait_ready(self, connection: WorkerConnection) -> None:
        """Return once it says Ready. What it says, and the memory it fills, is its progress."""
        assert self.process is not None
        pid, n_said = self.process.pid, 0
        silence = WorkerSilence(WATCH_EVERY_S, self._clock(), 0, lambda: self._thread_times(pid))
        while connection.ready is None:
            try:
                async with asyncio.timeout(WATCH_EVERY_S):
                    await connection.changed.wait()
            except TimeoutError:
                progress = n_said + self._peak_memory_mb(pid)
                silence.observe(self._clock(), progress)
                if silence.own_s < LOAD_SILENCE_S:
                    continue
                raise WorkerLost(
                    f"expected the worker {self.spec.name} to go on loading, found it "
                    f"{silence.own_s:.0f} s without progress in {_loading_of(connection)}"
                ) from None
            connection.changed.clear()
            n_said += 1
            if isinstance(connection.startup, LoadFailed):
                raise BackendRefused(connection.startup.message)
            if connection.lost.is_set():
                code = await self.process.wait()
                raise WorkerLost(
                    f"the worker {self.spec.name} ended with exit code {code} while loading "
                    f"{_loading_of(connection)}; its own words are above"
                )
            self._set_state(self.state)

    async def _watch(self) -> RestartCause:
        """Return once the process has ended, by itself or because it was silent too long."""
        connection, process = self.connection, self.process
        assert connection is not None and process is not None
        silence = WorkerSilence(
            WATCH_EVERY_S,
            self._clock(),
            connection.pulse.n_beats,
            lambda: self._thread_times(process.pid),
        )
        verdict = Verdict.BEATING
        while not connection.lost.is_set() and not verdict.is_lost:
            try:
                async with asyncio.timeout(WATCH_EVERY_S):
                    await connection.lost.wait()
            except TimeoutError:
                pass
            silence.observe(self._clock(), connection.pulse.n_beats)
            before = verdict
            verdict = silence.verdict(self.spec.hung_after_s, self.spec.spins_after_s)
            if verdict is Verdict.SLOW and before is Verdict.BEATING:
                log.warning("worker %s is slow: %s", self.spec.name, _told(silence))
        cause = RestartCause.EXIT
        if not connection.lost.is_set():
            cause = RestartCause.HUNG if verdict is Verdict.HUNG else RestartCause.SPIN
            log.error(
                "worker %s is %s and is killed: %s", self.spec.name, verdict.value, _told(silence)
            )
            if send(process, signal.SIGUSR1):  # a stopped one cannot write them
                await asyncio.sleep(STACKS_S)
        # One that hung up is about to end by itself: to kill it meanwhile would race for its code.
        await self.end(at_once=not connection.lost.is_set())
        code = process.returncode
        log.error("worker %s (pid %d) ended with code %s", self.spec.name, process.pid, code)
        is_stuck = cause in HANGS and sum(self.restarts[one] for one in HANGS) > 0
        return RestartCause.FAULT if self._step_down(is_stuck=is_stuck) else cause

    def _step_down(self, *, is_stuck: bool = False) -> bool:
        """Go on with what the spec has next, where the device failed; returns whether.

        It is never stepped up again: a person who has mended the device starts the server anew.
        """
        assert self.connection is not None and self.process is not None
        fault, code = self.connection.fault, self.process.returncode or 0
        if fault is None and -code in CRASHES:
            found = signal.Signals(-code).name
            fault = Fault("crash", f"expected the process to live, found it ended by {found}")
        if fault is None and is_stuck:
            fault = Fault("hang", "expected the worker's steps to end, found them hung again")
        if fault is None or not any(role.lower for role in self.spec.roles):
            return False
        log.error("worker %s goes on one step lower: %s", self.spec.name, fault.message)
        roles = tuple(
            replace(role.lower[0], lower=role.lower[1:], after=fault) if role.lower else role
            for role in self.spec.roles
        )
        self.spec = replace(self.spec, roles=roles)
        return True

    def _set_state(self, state: WorkerState) -> None:
        self.state = state
        if self._on_progress is not None:
            for role in self.states():
                self._on_progress(role)


def _loading_of(connection: WorkerConnection) -> str:
    """The role that a worker was loading last, for a person to read."""
    return connection.startup.role if isinstance(connection.startup, Loading) else "itself"


def _told(silence: WorkerSilence) -> str:
    """Return what a kill has for evidence."""
    ran = "unknown" if silence.ran_s is None else f"{silence.ran_s:.1f} s"
    return f"silent for {silence.own_s:.1f} s of its own, computing {ran} of it"
