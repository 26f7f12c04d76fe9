"""The worker process: one synchronous loop that steps the models of its roles.

It sleeps on its socket when nothing is due, passes each message to the role that owns the stream,
steps every role that has work, writes the events at once, and emits the heartbeat from this very
loop, so that a model that hangs is a heartbeat that stops. In the middle of a step a role may ask
whether a commit has arrived, and give up for it what nobody waits for. An error of one stream fails
that stream, also one that its role did not foresee; one of a whole step fails the streams of its
role, which may be opened again at once, and the third within a minute ends the process, as does a
state that is not sound, so that the supervisor starts another. The worker ends when the gateway's
end of the socket closes or its parent dies.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import logging
import os
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic

import msgspec

from voiceloop.backends import RoleName
from voiceloop.rooms import prefer_own_rooms
from voiceloop.workers.messages import (
    OPENING_ROLE,
    Close,
    Commit,
    FrameError,
    FrameReader,
    FromWorker,
    Heartbeat,
    LoadFailed,
    Loading,
    Profile,
    Profiled,
    Ready,
    RoleReady,
    StreamEvent,
    StreamFailed,
    ToWorker,
    WorkerSpec,
    decode_to_worker,
    encode,
)
from voiceloop.workers.profiling import StepProfile
from voiceloop.workers.roles.role import Role, RoleBroken, RoleError, StreamError, load_role

log = logging.getLogger(__name__)

HEARTBEAT_S = 0.25  # eight of them fit in the 2 s after which the supervisor calls it hung
READ_BYTES = 256 * 1024
MAX_READ_AHEAD = 1024  # messages taken in within a step; beyond that they stay on the socket
# The gateway always reads; when it has not for this long it is gone or stuck, and so is the call.
SEND_TIMEOUT_S = 10.0

# Steps that failed with no stream to blame: one may pass (memory for a moment), more will not.
MAX_FAILED_STEPS = 3
FAILED_STEPS_WITHIN_S = 60.0


EXIT_LOAD_FAILED = 3


class Worker:
    """The loop over one socket. ``run`` returns when the gateway has gone."""

    def __init__(
        self, connection: socket.socket, spec: WorkerSpec, clock: Callable[[], float] = monotonic
    ) -> None:
        self._connection = connection
        self._connection.settimeout(SEND_TIMEOUT_S)
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._spec = spec
        self._clock = clock
        self._frames = FrameReader()
        self._inbox = deque[ToWorker]()  # arrived, not yet passed on; read anew before every step
        self._roles: dict[RoleName, Role] = {}
        self._streams: dict[str, Role] = {}
        self._n_steps = 0
        self._busy_s = 0.0
        self._next_heartbeat = 0.0
        self._profile: StepProfile | None = None
        self._failed_steps_at = deque[float](maxlen=MAX_FAILED_STEPS)

    def load(self) -> None:
        """Import, read and warm every role, then say Ready. Raises: RoleError after LoadFailed."""
        ready: list[RoleReady] = []
        for spec in self._spec.roles:
            self._send([Loading(spec.role)])
            started = self._clock()
            try:
                role = load_role(spec)
                load_ms = 1000 * (self._clock() - started)
                role.warm_up()
            except RoleError as error:
                self._send([LoadFailed(spec.role, str(error))])
                raise
            self._roles[spec.role] = role
            told = RoleReady(spec.role, load_ms, role.rate_hz, role.detail, role.tokenizer)
            ready.append(told)
        # What was built while loading lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        self._send([Ready(tuple(ready))])

    def run(self) -> None:
        """Step until the gateway closes its end."""
        try:
            self._loop()
        except ConnectionError:
            return  # it closed while something was being sent

    def _loop(self) -> None:
        while True:
            has_work = any(role.has_work() for role in self._roles.values())
            self._beat(has_work)
            self._end_profile()
            # What arrived within the last step is no longer on the socket to wake anybody.
            is_due = has_work or bool(self._inbox)
            wait_s = 0.0 if is_due else max(0.0, self._next_heartbeat - self._clock())
            if self._poll.poll(1000 * wait_s) and not self._read():
                return
            for role in self._roles.values():
                self._pass_on()
                if role.has_work():
                    self._step(role)

    def _pass_on(self) -> None:
        while self._inbox:
            self._receive(self._inbox.popleft())
            self._beat(has_work=True)  # forty streams opened at once are work, not a hang

    def _step(self, role: Role) -> None:
        started = self._clock()
        try:
            events = role.step(self._commit_waits)
        except RoleBroken:
            raise
        except Exception as error:
            self._bear_failed_step(role, error)
            return
        now = self._clock()
        self._n_steps += 1
        self._busy_s += now - started
        outgoing: list[FromWorker] = []
        for event in events:
            if event.stream_id not in self._streams:
                continue  # closed while its step was under way
            if isinstance(event, StreamFailed):
                outgoing.append(event)
                self._forget(event.stream_id)
            else:
                outgoing.append(StreamEvent(event.stream_id, event.event, sent_at=now))
        if outgoing:
            self._send(outgoing)

    def _bear_failed_step(self, role: Role, error: Exception) -> None:
        """Log the error and end the role's streams; raise it when it is one too many.

        What the step had made for some of them is lost with it, so none of them is as it thinks.
        """
        now = self._clock()
        self._failed_steps_at.append(now)
        is_full = len(self._failed_steps_at) == MAX_FAILED_STEPS
        if is_full and now - self._failed_steps_at[0] <= FAILED_STEPS_WITHIN_S:
            raise error
        log.error("a step failed, and no one stream is to blame for it: %s", _traced(error))
        text = f"expected the step to go on, found {type(error).__name__}"
        for stream_id in [one for one, owner in self._streams.items() if owner is role]:
            self._fail(StreamFailed(stream_id, text, retryable=True))

    def _read(self) -> bool:
        """Receive what has arrived; False once the gateway has closed its end.

        Raises: FrameError on an impossible length, behind which nothing can be told apart.
        """
        try:
            data = self._connection.recv(READ_BYTES)
        except ConnectionError:
            return False
        for body in self._frames.feed(data):
            try:
                self._inbox.append(decode_to_worker(body))
            except FrameError as error:
                log.error("a message of %d bytes is passed over: %s", len(body), error)
        return bool(data)

    def _commit_waits(self) -> bool:
        """Whether a reply is asked for that was not when the step began."""
        if len(self._inbox) < MAX_READ_AHEAD and self._poll.poll(0):
            self._read()  # a closed end is seen again before the next step
        return any(isinstance(m, Commit) and not m.params.is_batch for m in self._inbox)

    def _receive(self, message: ToWorker) -> None:
        if isinstance(message, Profile):
            self._begin_profile(message)
            return
        if isinstance(message, Close):
            self._forget(message.stream_id)
            return
        opened = OPENING_ROLE.get(type(message))
        if opened is not None:
            if opened not in self._roles:
                text = f"expected a role of this worker ({', '.join(self._roles)}), found {opened}"
                self._send([StreamFailed(message.stream_id, text, retryable=False)])
                return
            self._streams[message.stream_id] = self._roles[opened]
        role = self._streams.get(message.stream_id)
        if role is None:
            return  # sent before the gateway learned that this stream had failed
        started = self._clock()
        try:
            role.receive(message)
        except RoleBroken:
            raise
        except StreamError as error:
            self._fail(error.told(message.stream_id))
        except Exception as error:
            kind = type(message).__name__
            log.error("%s failed the stream %s: %s", kind, message.stream_id, _traced(error))
            text = f"expected {kind} to be taken, found {type(error).__name__}"
            self._fail(StreamFailed(message.stream_id, text, retryable=False))
        self._busy_s += self._clock() - started  # encoding a prompt is work as any other

    def _begin_profile(self, asked: Profile) -> None:
        try:
            self._profile = StepProfile(asked, self._clock())
        except (ImportError, RuntimeError) as error:
            text = f"expected torch and its profiler in this worker, found: {error}"
            self._send([Profiled(asked.path, text)])

    def _end_profile(self) -> None:
        if self._profile is not None and self._profile.is_over(self._clock()):
            profile, self._profile = self._profile, None
            self._send([profile.finish()])

    def _fail(self, failed: StreamFailed) -> None:
        self._send([failed])
        self._forget(failed.stream_id)

    def _forget(self, stream_id: str) -> None:
        role = self._streams.pop(stream_id, None)
        if role is None:
            return
        try:
            role.close(stream_id)
        except RoleBroken:
            raise
        except Exception as error:
            log.error("the stream %s could not be closed: %s", stream_id, _traced(error))

    def _beat(self, has_work: bool) -> None:
        now = self._clock()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_S
        totals = {name: n for role in self._roles.values() for name, n in role.totals().items()}
        busy_ms = 1000 * self._busy_s
        self._send([Heartbeat(self._n_steps, busy_ms, has_work, sent_at=now, totals=totals)])

    def _send(self, messages: Iterable[FromWorker]) -> None:
        self._connection.sendall(b"".join(encode(message) for message in messages))


def _traced(error: Exception) -> str:
    """Where an error that nobody foresaw came from; not its words, which may be a caller's."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}\n{frames}"


def die_with_parent() -> None:
    """Have the kernel end this process with its parent; elsewhere than Linux the socket does."""
    if not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def limit_threads(n_threads: int) -> None:
    """Set the thread counts that numeric libraries read when they are first imported.

    Waiting threads sleep instead of spinning: on two cores a spinning pool starves the gateway.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(n_threads)
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    os.environ["KMP_BLOCKTIME"] = "0"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="voiceloop.workers.worker", description="Holds models for a VoiceLoop gateway."
    )
    parser.add_argument("--fd", type=int, required=True, help="an inherited, connected socket")
    parser.add_argument("--spec-json", required=True, help="the worker's roles as JSON")
    options = parser.parse_args(arguments)
    spec = msgspec.json.decode(options.spec_json, type=WorkerSpec)
    prefer_own_rooms()
    die_with_parent()
    # Asked for by the supervisor before it kills: where this process stood is the only evidence.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(format=f"%(levelname)s worker {spec.name}: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's; it closes the socket
    limit_threads(spec.n_threads)
    with socket.socket(fileno=options.fd) as connection:
        worker = Worker(connection, spec)
        try:
            worker.load()
            worker.run()
        except RoleError as error:
            print(f"worker {spec.name}: {error}", file=sys.stderr)
            return EXIT_LOAD_FAILED
        except ConnectionError:
            return 0  # the gateway went away while the models were being loaded
    return 0


if __name__ == "__main__":
    sys.exit(main())
