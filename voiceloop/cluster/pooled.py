"""The workers of one role that are joined, and which of them takes a new stream."""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from voiceloop.backends import RoleName
from voiceloop.canary.trial import Trial
from voiceloop.cluster.pool import Member, Pins, by_prompt, less_behind, shares_beside
from voiceloop.errors import WorkerLost
from voiceloop.workers import messages
from voiceloop.workers.client import OPEN_WAIT_S, WorkerClient, WorkerConnection
from voiceloop.workers.waits import call_of

# A worker that misses eight heartbeats may hang: what is new goes elsewhere, where there is an
# elsewhere.
DOUBTFUL_S = 2.0


class _Placed:
    """Calls that each worker was given since its last heartbeat, which could not tell of them."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}  # which heartbeat, and how many calls

    def add(self, worker: WorkerConnection) -> None:
        self._since[worker.name] = (worker.pulse.n_beats, self.count(worker) + 1)

    def count(self, worker: WorkerConnection) -> int:
        n_beats, n_calls = self._since.get(worker.name, (0, 0))
        return n_calls if n_beats == worker.pulse.n_beats else 0

    def forget(self, name: str) -> None:
        self._since.pop(name, None)


def _streams_of(connection: WorkerConnection) -> int:
    """Return its streams of all gateways, as of its last heartbeat."""
    last = connection.pulse.last
    return max(connection.n_streams, last.n_streams if last is not None else 0)


def _calls_of(connection: WorkerConnection, placed: _Placed) -> int:
    """Return its calls of all gateways: a quarter more than one's own few is soon passed.

    34 gateways of 23 calls each at 18 engines, simulated: by their own
    counts the prompts of 80 in 100 new calls had been read where they went; by these of 85. Calls,
    not streams: a third of the calls have none open, now of this worker and now of that, and one
    that is filled up whenever it seems to have room ends beyond its bound (1.29 for 1.25).
    """
    last = connection.pulse.last
    told = max(last.n_calls, last.n_streams) if last is not None else 0
    return max(connection.n_streams, told + placed.count(connection))


class PooledWorkers:
    """Several workers of a role, each of which can serve every call (`workers.models.Workers`)."""

    def __init__(
        self,
        role: RoleName,
        clients: Sequence[WorkerClient] = (),
        draw: random.Random | None = None,
        trial: Trial | None = None,
    ) -> None:
        self.role = role
        self.shares: Mapping[str, float] = {}  # of new calls, by version
        self._clients = {client.name: client for client in clients}
        self._pins = Pins()
        self._placed = _Placed()
        self._trial = trial if trial is not None else Trial()
        self._draw = draw or random.Random()
        self._gateway = secrets.token_hex(4)
        self._serial = itertools.count()
        self._first: messages.ToWorker | None = None  # sent to each when it is ready
        self._grown = asyncio.Event()
        self._heard: messages.Ready | None = None

    def add(self, client: WorkerClient) -> None:
        """Add a worker: it takes new streams from now on, once it is joined."""
        self._clients[client.name] = client
        if self._first is not None:
            client.tell_each(self._first)
        self._grown.set()

    def remove(self, client: WorkerClient) -> None:
        """Remove a worker: nothing new goes to it; what is open there goes on."""
        self._clients.pop(client.name, None)
        self._placed.forget(client.name)

    @property
    def is_alive(self) -> bool:
        """Whether a new stream would be taken now."""
        return bool(self._taking())

    @property
    def is_heard(self) -> bool:
        """Whether one that takes new streams has been heard of lately."""
        return any(one.silence_s < DOUBTFUL_S for one in self._taking().values())

    @property
    def utilization(self) -> float:
        """Share of its time that the least busy one computes, 0 to 1."""
        return min((one.utilization for one in self._taking().values()), default=0.0)

    @property
    def ready(self) -> messages.Ready | None:
        """Return what workers say that new calls go to; while there are none, what the last one
        said.

        Of several versions, that with the largest share of new calls.
        """
        told = [one.ready for one in self._taking().values() if one.ready is not None]
        if told:
            shares = self._shares_of(Counter(ready.version for ready in told))
            self._heard = max(told, key=lambda ready: shares.get(ready.version, 0.0))
        return self._heard

    def wire_id(self, stream_id: str) -> str:
        return f"{stream_id}/{self._gateway}.{next(self._serial)}"

    def tell_each(self, message: messages.ToWorker) -> None:
        self._first = message
        for client in self._clients.values():
            client.tell_each(message)

    async def current(self, stream_id: str, prompt: bytes = b"") -> WorkerConnection:
        """Raises: WorkerLost when none is ready in time."""
        taking = self._taking()
        if not taking:
            with suppress(TimeoutError):
                async with asyncio.timeout(OPEN_WAIT_S):  # as long as a caller bears it
                    await self.alive()
            taking = self._taking()
        if not taking:
            raise WorkerLost(
                f"expected a worker with the role {self.role}, found none that answers"
            )
        members = [
            Member(name, self._held_by(one), one.waits.oldest_s(), one.version)
            for name, one in taking.items()
        ]
        call, shares = call_of(stream_id), self._shares_of(Counter(m.version for m in members))
        tried = self._trial.versions
        before, stays = self._pins.of(call), self.role == "engine"  # which keeps what it has read
        rule = partial(by_prompt, prompt) if stays else partial(less_behind, draw=self._draw)
        chosen = self._pins.choose(call, members, shares, rule, tried, stays=stays)
        if stays and (before is None or before.name != chosen.name):
            self._placed.add(taking[chosen.name])
        self._trial.assign(call, chosen.version)
        return taking[chosen.name]

    def _held_by(self, connection: WorkerConnection) -> int:
        if self.role == "engine":  # which keeps what it has read of a call
            return _calls_of(connection, self._placed)
        return _streams_of(connection)

    def _shares_of(self, counts: Mapping[str, int]) -> Mapping[str, float]:
        """Return the shares of new calls, by version; counts: workers of each."""
        share = self._trial.own_share
        others = {v: n for v, n in counts.items() if v not in self._trial.versions}
        if share is None or not others or len(others) == len(counts):
            return self.shares
        return shares_beside(counts.keys() - others.keys(), share, others)

    def _taking(self) -> dict[str, WorkerConnection]:
        """The workers that take new streams: none that drains or is silent, if others are there."""
        alive = {
            name: client.connection
            for name, client in self._clients.items()
            if client.connection is not None and client.is_alive
        }
        staying = {name: one for name, one in alive.items() if not one.is_draining} or alive
        sure = {name: one for name, one in staying.items() if one.silence_s < DOUBTFUL_S}
        return sure or staying

    async def alive(self) -> None:
        """Return once any of them is joined, be it one that is added meanwhile."""
        is_joined = False
        while not is_joined:
            self._grown.clear()
            waits = [asyncio.ensure_future(one.alive()) for one in self._clients.values()]
            grown = asyncio.ensure_future(self._grown.wait())
            try:
                await asyncio.wait([*waits, grown], return_when=asyncio.FIRST_COMPLETED)
                is_joined = any(wait.done() for wait in waits)
            finally:
                for wait in (*waits, grown):
                    wait.cancel()
