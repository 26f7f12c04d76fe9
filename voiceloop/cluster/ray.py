"""A cluster on Ray, which places processes and starts anew what has died. Alone imports ray.

A host is an actor with a keeper, placed where there is room for what its process needs; Ray starts
it anew, elsewhere where its machine is gone. The directory is a named, detached actor over
`control.directory`, which is pure; what it knows is kept with Ray's head, where its successor finds
it. Callers, audio and tokens go between the processes themselves, never through here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import ray
from ray._private import ray_constants, services
from ray._private.authentication.authentication_utils import is_token_auth_enabled
from ray.exceptions import ActorUnavailableError, RayError
from ray.experimental import internal_kv

from voiceloop.cluster.control.directory import Directory, Record
from voiceloop.cluster.control.hosts import TICK_S, Action, Machine, Remove, Start, machine_of
from voiceloop.cluster.control.keeper import COMMAND, Keeper
from voiceloop.cluster.control.plan import Desired, Group
from voiceloop.cluster.control.reports import HostReport, Orders
from voiceloop.cluster.control.status import Status, status_of
from voiceloop.errors import VoiceLoopError
from voiceloop.log_form import log_in_form

log = logging.getLogger(__name__)

NAMESPACE = "voiceloop"
DIRECTORY = "directory"
RECORD = b"voiceloop/record"  # of the directory, under which Ray's head keeps it
LOOK_S = 5.0  # at the machines, for a status: what was seen last is told then
PAUSE_S = 1.0  # before what could not be placed is placed again
ANSWER_S = 30.0  # of the directory, for a command: Ray finds out late that its machine is gone
RETRY_S = 0.2
LOOPBACK = "127.0.0.1"
# Ray's switch for systems without clusters. Otherwise it takes 127.0.0.1 for another name of the
# machine's own address, and listens there.
LOOPBACK_ONLY = {ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR: "0"}
NODE_LABEL = "ray.io/node-id"
HEAD = {"node:__internal_head__": 0.001}  # the machine without which Ray goes too
ANEW = {"max_restarts": -1, "max_task_retries": -1}  # what has died Ray starts, for ever
# What Ray keeps for objects; ours are reports of some hundred bytes.
OBJECT_STORE_BYTES = 100 * 2**20
# A host that Ray ends leaves its process to drain. Read by Ray's own processes as they start.
KEEPS_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
PLAIN_LOG = {"RAY_COLOR_PREFIX": "0", "RAY_DEDUP_LOGS": "0"}


class ClusterError(VoiceLoopError):
    """The error that there is no cluster, or that it does not answer."""

    code = "cluster_unreachable"


class _Host:
    """An actor with one keeper. environ, key_names: as `Keeper` takes them."""

    def __init__(
        self,
        start: Start,
        environ: Mapping[str, str],
        key_names: Sequence[str],
        command: Sequence[str],
        address: str,
    ) -> None:
        log_in_form(f"{start.name}: %(levelname)s %(message)s", logging.INFO)
        self._start, self._environ, self._key_names = start, environ, key_names
        self._command = command
        self._address = address
        self._life: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return self._start.name  # before each line of its log, as Ray passes it on

    async def run(self) -> None:
        """Return when the process was drained and has ended, whoever asks how often."""
        if self._life is None:
            self._life = asyncio.create_task(self._live())
        await asyncio.shield(self._life)

    async def _live(self) -> None:
        name, group = self._start.name, self._start.group
        with tempfile.TemporaryDirectory(prefix=f"voiceloop-{name}-") as folder:
            keeper = Keeper(
                name,
                group.version,
                group.launch,
                folder=Path(folder),
                node=ray.get_runtime_context().get_node_id(),
                address=self._address or await asyncio.to_thread(_own_address),
                ask=_ask,
                environ=self._environ,
                key_names=self._key_names,
                command=self._command,
            )
            await keeper.run()


def _own_address() -> str:
    """Return this machine's address, as the others of the cluster know it."""
    own = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own))


async def _ask(report: HostReport) -> Orders:
    """Raises: ClusterError where there is no directory at the moment."""
    try:
        directory = await asyncio.to_thread(ray.get_actor, DIRECTORY, NAMESPACE)
        # A report is worth nothing later: it is not sent again to a directory that comes anew.
        orders: Orders = await directory.report.options(max_task_retries=0).remote(report)
    except (RayError, ValueError) as error:  # no such actor: ValueError
        raise ClusterError(f"the directory does not answer: {error}") from None
    return orders


class _Directory:
    """The actor over `Directory`. It carries out what that returns."""

    def __init__(self, desired: Desired, command: tuple[str, ...], address: str) -> None:
        log_in_form("directory: %(levelname)s %(message)s", logging.INFO)
        if ray.get_runtime_context().was_current_actor_reconstructed:
            record = _kept()
        else:
            _keep_record(record := Record(desired))
        self._directory = Directory(record, _new_name)
        self._stored = record
        self._command = command
        self._address = address
        self._outliving = set[asyncio.Task[None]]()
        self._ticking: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._machines: list[Machine] = []  # as they were last seen

    async def begin(self) -> None:
        """Called by Ray's loop once it runs, and by whatever comes first."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick_on())
            for name in self._directory.hosts:
                self._keep(self._outlive(name))

    async def report(self, report: HostReport) -> Orders:
        await self.begin()
        return self._directory.hear(report)

    async def want(
        self,
        groups: tuple[Group, ...],
        environ: dict[str, str],
        canary: float,
    ) -> list[str]:
        await self.begin()
        tried: list[str] = []
        if canary:
            tried = self._directory.try_out(groups, canary)
        else:
            self._directory.want(groups, environ)
        await self._store()
        return tried

    async def leave(self, node: str, is_left: bool) -> None:
        await self.begin()
        self._directory.cordon(node, is_left)
        await self._store()

    async def stop(self) -> None:
        await self.begin()
        self._directory.stop()
        await self._store()

    async def status(self) -> Status:
        await self.begin()
        # One look at a time: a head that hangs holds one thread, and whoever asks is answered.
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())
        await asyncio.wait({self._looking}, timeout=LOOK_S)
        return status_of(self._directory, self._machines)

    async def _look(self) -> None:
        try:
            self._machines = await asyncio.to_thread(_machines)
        except Exception as error:  # bare ones of Ray's; what was seen last holds on
            log.warning("machines could not be looked at: %s", error)

    async def is_down(self) -> bool:
        await self.begin()
        return self._directory.is_down

    def asks_token(self) -> bool:
        """Whether Ray, as it was started on the head's machine, asks who comes for its token."""
        return bool(is_token_auth_enabled())

    async def _store(self) -> None:
        """Store what a person was told is done, and what is placed: both outlive this directory."""
        record = self._directory.record
        if record != self._stored:
            await asyncio.to_thread(_keep_record, record)
            self._stored = record

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            try:
                actions = self._directory.tick()
                await self._store()
            except Exception:  # a bug of ours; the processes go on, and the next look may do better
                log.exception("what is to be done could not be told")
                actions = []
            for action in actions:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        """One that Ray refuses costs none of the others, and is tried again."""
        match action:
            case Start(name):
                try:
                    self._place(action)
                except Exception as error:  # bare ones of Ray's
                    log.error("%s could not be placed: %s", name, error)
                    loop = asyncio.get_running_loop()
                    loop.call_later(PAUSE_S, self._directory.forget, name)
            case Remove(name):
                self._keep(asyncio.to_thread(_remove, name))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._outliving.add(task)
        task.add_done_callback(self._outliving.discard)

    def _place(self, start: Start) -> None:
        needs, desired = dict(start.group.needs), self._directory.desired
        avoided = {NODE_LABEL: f"!in({','.join(start.avoid)})"} if start.avoid else {}
        _host_class.options(
            name=start.name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=needs.pop("CPU", 0.0),
            num_gpus=needs.pop("GPU", 0.0),
            resources=needs,
            label_selector=avoided or None,
            scheduling_strategy="SPREAD",
            **ANEW,
        ).remote(start, desired.environ, desired.key_names, self._command, self._address)
        log.info("places %s", start.name)
        self._keep(self._outlive(start.name))

    async def _outlive(self, name: str) -> None:
        """Have it run, across its restarts; forget it once it was drained, or cannot be placed."""
        try:
            host = await asyncio.to_thread(ray.get_actor, name, NAMESPACE)
            await host.run.remote()
        except (RayError, ValueError) as error:
            if name not in self._directory.hosts:
                return  # it was removed
            log.error("%s is gone: %s", name, str(error).strip().splitlines()[0])
            await asyncio.sleep(PAUSE_S)
        log.info("%s has ended", name)
        self._directory.forget(name)
        await asyncio.to_thread(_remove, name)


def _new_name(group: str) -> str:
    return f"{group}-{secrets.token_hex(3)}"


def _remove(name: str) -> None:
    with suppress(ValueError, RayError):  # it is gone already
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)


def _keep_record(record: Record) -> None:
    internal_kv._internal_kv_put(RECORD, msgspec.msgpack.encode(record))


def _kept() -> Record:
    """Raises: ClusterError where there is none: who knows of no process would have them all end."""
    found = internal_kv._internal_kv_get(RECORD)
    if found is None:
        raise ClusterError("expected what the directory before this one knew, found nothing")
    return msgspec.msgpack.decode(found, type=Record)


def _machines() -> list[Machine]:
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [machine_of(node, free.get(node["NodeID"], {})) for node in ray.nodes() if node["Alive"]]


_host_class = ray.remote(_Host)
_directory_class = ray.remote(_Directory)


# --- for the command -----------------------------------------------------------------------------


def begin_here() -> None:
    """Start Ray on this machine alone; it ends with this process. Raises: ClusterError."""
    os.environ.update({**KEEPS_CHILDREN, **PLAIN_LOG, **LOOPBACK_ONLY})
    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment as Ray was imported
    try:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            _node_ip_address=LOOPBACK,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            configure_logging=False,
            log_to_driver=True,
        )
    except Exception as error:  # Ray raises these bare: half a minute was too little for its start
        raise ClusterError(f"expected Ray to start here, found: {error}") from error


def join(address: str) -> None:
    """Connect to a cluster of Ray's. Raises: ClusterError."""
    try:
        address = services.get_ray_address_from_environment(address, None)
        if address.startswith(f"{LOOPBACK}:"):
            ray_constants.ENABLE_RAY_CLUSTER = False
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise ClusterError(f"expected a Ray cluster at {address}, found none ({error})") from None


def leave() -> None:
    ray.shutdown()


def begin(
    groups: Sequence[Group],
    environ: Mapping[str, str],
    key_names: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
    *,
    address: str = "",
    token: bool = False,
) -> None:
    """Start the directory, and with it everything. Raises: ClusterError where there is one.

    token: whether it is an error where Ray lets in whoever comes without one.
    environ: settings of all processes; key_names: variables of each machine's own environment that
    its processes get besides. address: what workers listen at; else each at its machine's own, as
    Ray knows it.
    """
    wanted = tuple(group.with_settings(environ) for group in groups)
    desired = Desired(1, wanted, environ, tuple(key_names))
    try:
        directory = _directory_class.options(
            name=DIRECTORY,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources=HEAD,
            max_concurrency=1000,
            max_restarts=-1,
        ).remote(desired, tuple(command), address)
        if token and not ray.get(directory.asks_token.remote(), timeout=ANSWER_S):
            ray.kill(directory, no_restart=True)
            raise ClusterError(
                "expected a Ray that asks for a token, found one that lets in whoever reaches it; "
                "start it with RAY_AUTH_MODE=token, or set RAY_AUTH_MODE=disabled here too"
            )
        ray.get(directory.begin.remote(), timeout=ANSWER_S)
    except ValueError:
        raise ClusterError(
            "expected no cluster yet, found one running; voiceloop cluster deploy changes it"
        ) from None


def status() -> Status:
    """Raises: ClusterError."""
    found: Status = _call("status")
    return found


def deploy(
    groups: Sequence[Group],
    environ: dict[str, str],
    *,
    canary: float = 0.0,
) -> list[str]:
    """Roll it out; or give what differs this share of new calls. Returns the groups of a canary."""
    tried: list[str] = _call("want", tuple(groups), environ, canary)
    return tried


def drain(node: str, *, is_left: bool = True) -> Machine:
    """Leave a machine, or take it back. node: its id or address. Raises: ClusterError."""
    machines = [one for one in _machines() if node in (one.id, one.address)]
    if len(machines) != 1:
        known = ", ".join(f"{one.address} ({one.id})" for one in _machines())
        raise ClusterError(
            f"expected one machine of the cluster, found {node!r}; there are {known}"
        )
    _call("leave", machines[0].id, is_left)
    return machines[0]


def stop() -> None:
    _call("stop")


def is_down() -> bool:
    return bool(_call("is_down"))


def forget() -> None:
    """End the directory of a cluster that is down."""
    _remove(DIRECTORY)
    internal_kv._internal_kv_del(RECORD)


def _call(method: str, *arguments: Any) -> Any:
    """Ask the directory, again while it is being started anew. Raises: ClusterError."""
    ends_s = monotonic() + ANSWER_S
    while True:
        try:
            directory = ray.get_actor(DIRECTORY, NAMESPACE)
            return ray.get(getattr(directory, method).remote(*arguments), timeout=ANSWER_S)
        except ValueError:
            wanted = "expected a running cluster, found none: voiceloop cluster up"
            raise ClusterError(wanted) from None
        except RayError as error:
            if not isinstance(error, ActorUnavailableError) or monotonic() > ends_s:
                wanted = "expected the cluster's directory to answer"
                raise ClusterError(f"{wanted}, found {error}") from None
        time.sleep(RETRY_S)
