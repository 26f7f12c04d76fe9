"""The worker process: one synchronous loop that steps the models of its roles.

It sleeps on its sockets when nothing is due, passes the messages of its gateways by turns to the
roles that own the streams, steps every role that has work, writes the events at once, and emits the
heartbeat from this very loop, so that a model that hangs is a heartbeat that stops. In the middle
of a step a role may ask whether a commit has arrived, and give up for it what nobody waits for. An
error of one stream fails that stream, also one that its role did not foresee; one of a whole step
fails the streams of its role, which may be opened again at once, and the third within a minute ends
the process, as does a state that is not sound, so that another is started. What is asked over HTTP
is begun where no call needs the models. A gateway that goes ends its own streams; the worker ends
when its parent's end of the socket closes or its parent dies.
"""

from __future__ import annotations

import argparse
import gc
import logging
import select
import socket
import sys
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

import msgspec

from voiceloop.backends import RoleName
from voiceloop.log_form import traced
from voiceloop.workers.backlog import Backlog
from voiceloop.workers.messages import (
    OPENING_ROLE,
    Asked,
    CallResumed,
    Close,
    Drain,
    Draining,
    Fault,
    FromWorker,
    Heartbeat,
    LoadFailed,
    Loading,
    OpenRecognizer,
    OpenVoice,
    ReadAhead,
    Ready,
    RoleReady,
    Settle,
    Settled,
    StreamEvent,
    StreamFailed,
    ToRole,
    ToWorker,
    WorkerSpec,
)
from voiceloop.workers.peer import Door, Peer
from voiceloop.workers.process_setup import prepare
from voiceloop.workers.roles import role as roles
from voiceloop.workers.roles.role import Role, RoleBroken, RoleError, StreamError

log = logging.getLogger(__name__)

TOTALS_EVERY = 16  # heartbeats: for gateways of other processes, which only show them
HEARTBEAT_S = 0.25  # eight of them fit in the 2 s after which the supervisor calls it hung
EXIT_LOAD_FAILED = 3
MAX_TOLD_CHARACTERS = 200  # of an error that a driver or a compiler raised
MAX_FAILED_STEPS = 3  # one may pass (memory for a moment), more will not
FAILED_STEPS_WITHIN_S = 60.0


class _Stream(NamedTuple):
    """is_batch: no call waits for it."""

    role: Role
    peer: Peer
    is_batch: bool


class FailedSteps:
    """Steps that failed with no stream to blame: how many may pass."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failed_at_s = deque[float](maxlen=MAX_FAILED_STEPS)

    def add(self) -> bool:
        """Another one has failed; returns whether it is one too many."""
        now_s = self._clock()
        self._failed_at_s.append(now_s)
        is_full = len(self._failed_at_s) == MAX_FAILED_STEPS
        return is_full and now_s - self._failed_at_s[0] <= FAILED_STEPS_WITHIN_S


class Worker:
    """The loop over its gateways. ``run`` returns when the parent's connection has ended."""

    def __init__(
        self,
        connection: socket.socket,
        spec: WorkerSpec,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._parent = Peer(connection, "the parent", clock, is_parent=True)
        self._peers = [self._parent]
        self._door: Door | None = None
        self._poll = select.poll()
        self._spec = spec
        self._clock = clock
        self._roles: dict[RoleName, Role] = {}
        self._streams: dict[str, _Stream] = {}
        self._ready: Ready | None = None
        self._is_draining = False
        self._settling: dict[Peer, Settle] = {}  # of each the newest
        self._n_steps = 0
        self._busy_s = 0.0
        self._next_heartbeat = 0.0
        self._n_beats = 0
        self._backlog = Backlog(clock)
        self._failed_steps = FailedSteps(clock)

    def load(self) -> None:
        """Import, read and warm every role, then say Ready. Raises: RoleError after LoadFailed."""
        ready: list[RoleReady] = []
        for spec in self._spec.roles:
            self._parent.send([Loading(spec.role)])
            started = self._clock()
            try:
                role = roles.load_role(spec)
                load_ms = 1000 * (self._clock() - started)
                role.warm_up()
            except RoleError as error:
                self.tell_fault(error)
                self._parent.send([LoadFailed(spec.role, str(error))])
                raise
            except Exception as error:  # a driver's or a compiler's, which has no root of ours
                log.exception("the role %s could not be loaded", spec.role)
                told = f"expected the {spec.role} to load and to answer, found {_told(error)}"
                self._parent.send([LoadFailed(spec.role, told)])
                raise RoleError(told) from error
            self._roles[spec.role] = role
            ready.append(roles.ready_of(spec, role, load_ms))
        # What was built while loading lives as long as the process: keep the collector off it.
        gc.collect()
        gc.freeze()
        self._ready = Ready(tuple(ready), self._spec.version)
        self._parent.send([self._ready])

    def tell_fault(self, error: RoleError) -> None:
        """Tell whoever started this process that the device is at fault, if it is."""
        if error.fault:
            self._parent.send([Fault(error.fault, str(error))])

    def let_in_by(self, door: Door) -> None:
        """Serve also the gateways that come in here, all that is loaded."""
        self._door = door
        self._poll.register(door.fileno(), select.POLLIN)

    def run(self) -> None:
        """Step until the parent closes its end."""
        while True:
            has_work = self._has_work
            self._beat(has_work)
            # What arrived within the last step is no longer on a socket to wake anybody.
            is_due = has_work or any(peer.inbox for peer in self._peers)
            self._take_in(0.0 if is_due else self._wait_s())
            self._let_in()
            self._see_off()
            if self._parent.is_gone:
                return
            for role in self._roles.values():
                self._pass_on()
                if role.has_work():
                    self._step(role)
            if self._backlog.is_due(is_idle=not self._has_work):
                for message in self._backlog.take():
                    self._hand_over(message)
            self._tell_settled()

    def _tell_settled(self) -> None:
        if self._settling and not self._has_work and not any(peer.inbox for peer in self._peers):
            for peer, asked in self._settling.items():
                peer.send([Settled(asked.number)])
            self._settling.clear()

    @property
    def _has_work(self) -> bool:
        return any(role.has_work() for role in self._roles.values())

    def _wait_s(self) -> float:
        """How long to sleep where nothing arrives and no model has anything to do."""
        backlog_s = self._backlog.wait_s() if self._backlog else HEARTBEAT_S
        return max(0.0, min(self._next_heartbeat - self._clock(), backlog_s))

    def _take_in(self, wait_s: float) -> None:
        """Read what arrives and write what could not be, after at most so long."""
        peers = {peer.fileno(): peer for peer in self._peers if not peer.is_gone}
        for descriptor, peer in peers.items():
            self._poll.register(descriptor, peer.awaits)
        for descriptor, event in self._poll.poll(1000 * wait_s):
            if descriptor not in peers:
                continue  # the door: `_let_in` follows
            peer = peers[descriptor]
            if event & select.POLLOUT:
                peer.flush()
            if event & ~select.POLLOUT:
                peer.read()

    def _let_in(self) -> None:
        """Tell whoever has come in what there is."""
        if self._door is None or self._ready is None:
            return
        for peer in self._door.take():
            self._peers.append(peer)
            peer.send([self._ready, Draining()] if self._is_draining else [self._ready])

    def _see_off(self) -> None:
        """Forget gateways that are gone, and the streams of one that reads too slowly."""
        for peer in self._peers:
            if peer.is_overfull:
                text = f"expected {peer.name} to read what its streams make, found it does not"
                for stream_id in list(peer.streams):
                    self._fail(StreamFailed(stream_id, text, retryable=True))
            if peer.is_gone:
                for stream_id in list(peer.streams):
                    self._forget(stream_id)
                try:
                    self._poll.unregister(peer.fileno())
                except KeyError:
                    pass  # lost before it was ever polled
                peer.close()
        self._peers = [peer for peer in self._peers if not peer.is_gone or peer.is_parent]

    def _pass_on(self) -> None:
        """Pass on what arrived, a message of each gateway in turn: none waits for all of one's."""
        while any(peer.inbox for peer in self._peers):
            for peer in self._peers:
                if peer.inbox:
                    self._receive(peer.take(), peer)
                    self._beat(has_work=True)  # forty streams opened at once are work, not a hang

    def _step(self, role: Role) -> None:
        started = self._clock()
        try:
            events = role.step(self._asked)
        except RoleBroken:
            raise
        except Exception as error:
            self._bear_failed_step(role, error)
            return
        now = self._clock()
        self._n_steps += 1
        self._busy_s += now - started
        outgoing: dict[Peer, list[FromWorker]] = {}
        for event in events:
            stream = self._streams.get(event.stream_id)
            if stream is None:
                continue  # closed while its step was under way
            told = outgoing.setdefault(stream.peer, [])
            if isinstance(event, StreamFailed):
                told.append(event)
                self._forget(event.stream_id)
            else:
                told.append(StreamEvent(event.stream_id, event.event, sent_at=now))
        for peer, messages in outgoing.items():
            for stream_id in peer.send(messages):
                self._forget(stream_id)

    def _bear_failed_step(self, role: Role, error: Exception) -> None:
        """Log the error and end the role's streams, of which none is as it thinks; raise it when it
        is one too many.
        """
        if self._failed_steps.add():
            raise error
        log.error("a step failed, and no one stream is to blame for it: %s", traced(error))
        text = f"expected the step to go on, found {type(error).__name__}"
        for stream_id in [one for one, own in self._streams.items() if own.role is role]:
            self._fail(StreamFailed(stream_id, text, retryable=True))

    def _asked(self) -> list[Asked]:
        """Return what replies are asked for that were not when the step began."""
        self._take_in(0.0)  # an end that is closed is seen before the next step
        self._beat(has_work=True)  # within a long one, too
        waiting = (message for peer in self._peers for message in peer.inbox)
        return [m for m in waiting if isinstance(m, Asked) and not m.params.is_batch]

    def _receive(self, message: ToWorker, peer: Peer) -> None:
        if isinstance(message, Drain):
            self._begin_draining(peer)
            return
        if isinstance(message, Settle):
            self._settling[peer] = message
            return
        if isinstance(message, ReadAhead):
            self._read_ahead(message)
            return
        if isinstance(message, CallResumed):
            for other in self._peers:
                if other is not peer and not other.is_parent:
                    other.send([message])
            return
        stream = self._streams.get(message.stream_id)
        if stream is not None and stream.peer is not peer:
            # Ids are drawn at random, so this is no accident: it is told what it would be of a
            # stream that has ended, and touches nothing.
            log.error("%s named a stream of %s", peer.name, stream.peer.name)
            return
        if isinstance(message, Close):
            self._forget(message.stream_id)
            return
        opened = OPENING_ROLE.get(type(message))
        if opened is not None:
            if opened not in self._roles:
                text = f"expected a role of this worker ({', '.join(self._roles)}), found {opened}"
                peer.send([StreamFailed(message.stream_id, text, retryable=False)])
                return
            stream = _Stream(self._roles[opened], peer, _is_batch(message))
            self._streams[message.stream_id] = stream
            peer.open(message.stream_id)
        if stream is None:
            return  # sent before the gateway learned that this stream had failed
        if opened is not None or not stream.is_batch:
            self._hand_over(message)
        elif not self._backlog.put(message):
            text = "expected less to be waiting to be heard or spoken, found more"
            self._fail(StreamFailed(message.stream_id, text, retryable=False))

    def _hand_over(self, message: ToRole) -> None:
        """Give a message to the role that owns its stream; what that raises ends the stream."""
        stream = self._streams.get(message.stream_id)
        if stream is None:
            return  # the message before it ended the stream
        if not stream.is_batch:
            self._backlog.observe_call()
        started = self._clock()
        try:
            stream.role.receive(message)
        except RoleBroken:
            raise
        except StreamError as error:
            self._fail(error.told(message.stream_id))
        except Exception as error:
            kind = type(message).__name__
            log.error("%s failed the stream %s: %s", kind, message.stream_id, traced(error))
            text = f"expected {kind} to be taken, found {type(error).__name__}"
            self._fail(StreamFailed(message.stream_id, text, retryable=False))
        self._busy_s += self._clock() - started  # encoding a prompt is work as any other

    def _read_ahead(self, message: ReadAhead) -> None:
        """Read ahead for nobody who waits: it opens no stream, and its role logs what is wrong
        with it.
        """
        if (role := self._roles.get("engine")) is not None:
            started = self._clock()
            role.receive(message)
            self._busy_s += self._clock() - started

    def _begin_draining(self, asking: Peer) -> None:
        if asking.is_parent:
            self._is_draining = True
            for peer in self._peers:
                peer.send([Draining()])

    def _fail(self, failed: StreamFailed) -> None:
        self._streams[failed.stream_id].peer.send([failed])
        self._forget(failed.stream_id)

    def _forget(self, stream_id: str) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        stream.peer.forget(stream_id)
        self._backlog.forget(stream_id)
        try:
            stream.role.close(stream_id)
        except RoleBroken:
            raise
        except Exception as error:
            log.error("the stream %s could not be closed: %s", stream_id, traced(error))

    def _beat(self, has_work: bool) -> None:
        now = self._clock()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + HEARTBEAT_S
        totals = {name: n for role in self._roles.values() for name, n in role.totals().items()}
        busy_ms, n_streams = 1000 * self._busy_s, len(self._streams)
        n_calls = sum(peer.n_calls() for peer in self._peers)
        beat = Heartbeat(self._n_steps, busy_ms, has_work, now, totals, n_streams, n_calls)
        self._n_beats += 1
        is_short = self._n_beats % TOTALS_EVERY != 1
        short = msgspec.structs.replace(beat, totals={}) if is_short else beat
        for peer in self._peers:
            peer.send([beat if peer.is_parent else short])


def _told(error: Exception) -> str:
    """An error while loading, where no caller has said a word yet: its name and first line."""
    said = str(error).strip().splitlines()
    return ": ".join([type(error).__name__, *(line[:MAX_TOLD_CHARACTERS] for line in said[:1])])


def _is_batch(opening: ToWorker) -> bool:
    return isinstance(opening, OpenRecognizer | OpenVoice) and opening.options.is_batch


def serve(
    connection: socket.socket, spec: WorkerSpec, open_door: Callable[[], Door] | None = None
) -> int:
    """Load, then step until the parent goes; returns the exit code.

    open_door: called once all is loaded.
    """
    worker = Worker(connection, spec)
    try:
        worker.load()
    except RoleError:  # whoever has started it tells why
        return EXIT_LOAD_FAILED
    if open_door is not None:
        worker.let_in_by(open_door())
    try:
        worker.run()
    except RoleBroken as error:
        worker.tell_fault(error)
        raise
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--fd", type=int, required=True, help="an inherited, connected socket")
    parser.add_argument("--spec-json", required=True, help="the worker's roles as JSON")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="voiceloop.workers.worker", description="Holds models for a VoiceLoop gateway."
    )
    add_arguments(parser)
    options = parser.parse_args(arguments)
    spec = msgspec.json.decode(options.spec_json, type=WorkerSpec)
    prepare(spec)
    with socket.socket(fileno=options.fd) as connection:
        return serve(connection, spec)


if __name__ == "__main__":
    sys.exit(main())
