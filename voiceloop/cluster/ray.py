"""A cluster on Ray: its actors place, watch and replace processes. The only file that imports ray.

A host is an actor with a keeper, placed where there is room for what its process needs. The
directory is a named, detached actor over `control.directory`, which is pure; Ray starts it anew
where it dies. Callers, audio and tokens go between the processes themselves, never through here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from voiceloop.cluster.control.directory import Directory
from voiceloop.cluster.control.hosts import Action, Remove, Start
from voiceloop.cluster.control.keeper import COMMAND, Keeper
from voiceloop.cluster.control.machines import Machine, machine_of
from voiceloop.cluster.control.plan import Desired, Group
from voiceloop.cluster.control.reports import HostReport, Orders
from voiceloop.cluster.control.status import Status, status_of
from voiceloop.errors import VoiceLoopError

log = logging.getLogger(__name__)

NAMESPACE = "voiceloop"
DIRECTORY = "directory"
TICK_S = 0.5
LOOK_S = 1.0  # at the machines
PAUSE_S = 1.0  # before what died is replaced: what dies at its start is not placed without end
ANSWER_S = 30.0  # of the directory, for a command: Ray finds out late that its machine is gone
RETRY_S = 0.2
LOOPBACK = "127.0.0.1"  # Ray itself takes it for another name of the machine's own address
NODE_LABEL = "ray.io/node-id"
HEAD = {"node:__internal_head__": 0.001}  # the machine without which Ray goes too
# What Ray keeps for objects; ours are reports of some hundred bytes.
OBJECT_STORE_BYTES = 100 * 2**20
# A host that Ray ends leaves its process to drain. Read by Ray's own processes as they start.
KEEPS_CHILDREN = {"RAY_kill_child_processes_on_worker_exit": "0"}
PLAIN_LOG = {"RAY_COLOR_PREFIX": "0", "RAY_DEDUP_LOGS": "0"}


class ClusterError(VoiceLoopError):
    """There is no cluster, or it does not answer."""

    code = "cluster_unreachable"


class _Host:
    """An actor with one keeper."""

    def __init__(
        self, start: Start, desired: Desired, command: tuple[str, ...], address: str
    ) -> None:
        logging.basicConfig(level=logging.INFO, format=f"{start.name}: %(levelname)s %(message)s")
        self._start, self._desired = start, desired
        self._command = command
        self._address = address

    def __repr__(self) -> str:
        return self._start.name  # before each line of its log, as Ray passes it on

    async def run(self) -> None:
        """Return when the process was drained and has ended."""
        name, group = self._start.name, self._start.group
        with tempfile.TemporaryDirectory(prefix=f"voiceloop-{name}-") as folder:
            keeper = Keeper(
                name,
                group.name,
                group.version,
                group.launch,
                folder=Path(folder),
                node=ray.get_runtime_context().get_node_id(),
                address=self._address or await asyncio.to_thread(_own_address),
                ask=_ask,
                environ=self._desired.environ,
                desired=self._desired,
                command=self._command,
            )
            await keeper.run()


def _own_address() -> str:
    """This machine's, as the others of the cluster know it."""
    own = ray.get_runtime_context().get_node_id()
    return str(next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == own))


async def _ask(report: HostReport) -> Orders:
    """Raises: ClusterError where there is no directory at the moment."""
    try:
        directory = await asyncio.to_thread(ray.get_actor, DIRECTORY, NAMESPACE)
        orders: Orders = await directory.report.remote(report)
    except (RayError, ValueError) as error:  # no such actor: ValueError
        raise ClusterError(f"the directory does not answer: {error}") from None
    return orders


class _Directory:
    """The actor over `Directory`. It carries out what that returns."""

    def __init__(self, desired: Desired, command: tuple[str, ...], address: str) -> None:
        logging.basicConfig(level=logging.INFO, format="directory: %(levelname)s %(message)s")
        is_anew = bool(ray.get_runtime_context().was_current_actor_reconstructed)
        self._directory = Directory(desired, monotonic(), _new_name, is_anew=is_anew)
        self._command = command
        self._address = address
        self._outliving = set[asyncio.Task[None]]()
        self._ticking: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Called by Ray's loop once it runs, and by whatever comes first."""
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.get_running_loop().create_task(self._tick_on())
            self._keep(self._look_on())

    async def report(self, report: HostReport) -> Orders:
        await self.begin()
        return self._directory.hear(report, monotonic())

    async def want(
        self,
        groups: tuple[Group, ...],
        environ: dict[str, str],
        canary: float,
    ) -> list[str]:
        await self._until_rebuilt()
        if canary:
            tried = self._directory.try_out(groups, canary)
        else:
            tried = []
            self._directory.want(groups, environ)
        await self._until_known()
        return tried

    async def leave(self, node: str, is_left: bool) -> None:
        await self._until_rebuilt()
        (self._directory.cordon if is_left else self._directory.uncordon)(node)
        await self._until_known()

    async def stop(self) -> None:
        await self._until_rebuilt()
        self._directory.stop()
        await self._until_known()

    async def _until_rebuilt(self) -> None:
        """The first reports tell what was wanted before, and would undo what is wanted now."""
        await self.begin()
        while self._directory.is_rebuilding(monotonic()):  # noqa: ASYNC110 - a clock has no event
            await asyncio.sleep(TICK_S / 5)

    async def _until_known(self) -> None:
        """What a person was told is done outlives this directory."""
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S / 2):
                while not self._directory.is_known:  # noqa: ASYNC110 - reports come twice a second
                    await asyncio.sleep(TICK_S / 5)

    async def status(self) -> Status:
        await self.begin()
        return status_of(self._directory, monotonic())

    async def is_down(self) -> bool:
        await self.begin()
        return self._directory.is_down

    async def _look_on(self) -> None:
        """Beside the ticks, which nothing of Ray's is to hold up."""
        while True:
            try:
                self._directory.see(await asyncio.to_thread(_machines), monotonic())
            except Exception as error:  # bare ones of Ray's; what was seen last holds on
                log.warning("machines could not be looked at: %s", error)
            await asyncio.sleep(LOOK_S)

    async def _tick_on(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)  # before the first one too: then machines are known
            try:
                actions = self._directory.tick(monotonic())
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
        needs = start.group.needs
        strategy: Any = "SPREAD"
        if start.machine:  # where that has gone meanwhile, or its room has, anywhere
            strategy = NodeAffinitySchedulingStrategy(
                start.machine, soft=True, _spill_on_unavailable=True
            )
        avoided = {NODE_LABEL: f"!in({','.join(start.avoid)})"} if start.avoid else {}
        host = _host_class.options(
            name=start.name,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=needs.cpus,
            num_gpus=needs.gpus,
            memory=needs.memory_mb * 2**20 or None,
            resources=dict(needs.resources),
            label_selector=avoided or None,
            scheduling_strategy=strategy,
            max_restarts=0,  # the directory replaces it, where that is still wanted
        ).remote(start, self._directory.desired, self._command, self._address)
        log.info("places %s", start)
        self._keep(self._outlive(start.name, host))

    async def _outlive(self, name: str, host: Any) -> None:
        """Ray tells at once where an actor has died; a lease finds out the rest."""
        try:
            await host.run.remote()
        except RayError as error:
            if name not in self._directory.hosts:
                return  # it was removed
            log.error("%s is gone: %s", name, str(error).strip().splitlines()[0])
            await asyncio.sleep(PAUSE_S)
            self._directory.lose(name, monotonic())
        log.info("%s has ended", name)
        self._directory.forget(name)
        await asyncio.to_thread(_remove, name)


def _new_name(group: str) -> str:
    return f"{group}-{secrets.token_hex(3)}"


def _remove(name: str) -> None:
    with suppress(ValueError, RayError):  # it is gone already
        ray.kill(ray.get_actor(name, NAMESPACE), no_restart=True)


def _machines() -> list[Machine]:
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [machine_of(node, free.get(node["NodeID"], {})) for node in ray.nodes() if node["Alive"]]


_host_class = ray.remote(_Host)
_directory_class = ray.remote(_Directory)


# --- for the command -----------------------------------------------------------------------------


def begin_here() -> None:
    """Start Ray on this machine alone; it ends with this process. Raises: ClusterError."""
    os.environ.update({**KEEPS_CHILDREN, **PLAIN_LOG})
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
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise ClusterError(f"expected a Ray cluster at {address}, found none ({error})") from None


def leave() -> None:
    ray.shutdown()


def begin(
    groups: Sequence[Group],
    environ: dict[str, str],
    command: Sequence[str] = COMMAND,
    *,
    address: str = "",
) -> None:
    """Start the directory, and with it everything. Raises: ClusterError where there is one.

    address: what workers listen at; else each at its machine's own, as Ray knows it.
    """
    wanted = tuple(group.with_settings(environ) for group in groups)
    try:
        directory = _directory_class.options(
            name=DIRECTORY,
            namespace=NAMESPACE,
            lifetime="detached",
            num_cpus=0,
            resources=HEAD,
            max_restarts=-1,
            max_task_retries=0,
            max_concurrency=1000,
        ).remote(Desired(1, wanted, environ), tuple(command), address)
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
