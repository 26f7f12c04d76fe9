"""``voiceloop worker``: the process that starts a worker on the network, watches and restarts it.

It holds the listening socket, so that the address outlives a restart, and is the worker's parent:
what hangs or spins is killed here, where its threads can be seen. Gateways that come meanwhile wait
at the door and go to another worker.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from dataclasses import replace

import msgspec

from voiceloop.cluster.address import Address
from voiceloop.cluster.control.reports import ProcessReport
from voiceloop.cluster.control.telling import tell_on
from voiceloop.cluster.network_worker import KEY_VARIABLE
from voiceloop.cluster.remote_workers import check_keys
from voiceloop.errors import ConfigError
from voiceloop.operation import WorkerAddresses
from voiceloop.workers.messages import Drain, WorkerSpec
from voiceloop.workers.process import Entry, Progress, WorkerProcess

log = logging.getLogger(__name__)

BACKLOG = 128
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
DRAIN_LOOK_S = 0.25


def listen(address: Address) -> socket.socket:
    """Raises: ConfigError where the address is not of this machine, or taken."""
    try:
        family, kind, proto, _, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--listen: expected an address, found {address} ({error})") from None
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(place)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"--listen: expected a free address of this machine, found {address} ({error.strerror})"
        ) from None
    return listening


async def host_worker(
    spec: WorkerSpec,
    address: Address,
    settings: WorkerAddresses,
    *,
    drain_s: float,
    tells: bool = False,
    ready: Callable[[Address], None] | None = None,
    on_progress: Progress | None = None,
) -> None:
    """Serve gateways until SIGTERM or SIGINT; streams in progress may end within ``drain_s``.

    tells: of itself on the standard output, as `control.telling` does.

    Raises:
        ConfigError: no key, or the address is not to be had.
        BackendError: a model cannot be loaded.
    """
    keys = check_keys(settings)
    with listen(address) as listening:
        worker = WorkerProcess(
            spec,
            on_progress=on_progress,
            environ={KEY_VARIABLE: msgspec.json.encode(keys).decode()},
            entry=Entry(
                "voiceloop.cluster.network_worker",
                (f"--listen-fd={listening.fileno()}",),
                (listening.fileno(),),
            ),
        )
        place = replace(address, port=listening.getsockname()[1])
        await _run(worker, drain_s, place, tells=tells, ready=ready)


async def _run(
    worker: WorkerProcess,
    drain_s: float,
    place: Address,
    *,
    tells: bool,
    ready: Callable[[Address], None] | None,
) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    life = asyncio.create_task(_live(worker, place, ready), name=f"worker {worker.spec.name}")
    stop = asyncio.create_task(stopped.wait())
    beside = [life, stop]
    if tells:
        telling = tell_on(lambda: _report(worker, place, is_draining=stop.done()))
        beside.append(asyncio.create_task(telling, name="reports"))
    try:
        await asyncio.wait([life, stop], return_when=asyncio.FIRST_COMPLETED)
        if life.done():
            life.result()
        else:
            await _drain(worker, drain_s, stopped)
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await worker.end()


async def _live(
    worker: WorkerProcess, place: Address, ready: Callable[[Address], None] | None
) -> None:
    await worker.start()
    if ready is not None:
        ready(place)
    await worker.run()


def _report(worker: WorkerProcess, place: Address, *, is_draining: bool) -> ProcessReport:
    """How much of the worker its gateways use, together."""
    connection = worker.connection
    if connection is None or not connection.is_alive:
        return ProcessReport("loading", str(place), trouble=f"it is {worker.state}")
    last = connection.pulse.last
    totals = last.totals if last is not None else {}
    kv_used = totals.get("kv_blocks_held", 0.0) / max(1.0, totals.get("kv_blocks", 0.0))
    return ProcessReport(
        "draining" if is_draining else "ready",
        str(place),
        used=round(max(connection.utilization, kv_used), 3),
        n_streams=last.n_streams if last is not None else 0,
    )


async def _drain(worker: WorkerProcess, drain_s: float, stopped: asyncio.Event) -> None:
    """Have gateways open nothing more, and wait for what is open; a second signal ends that."""
    connection = worker.connection
    if connection is None or not connection.is_alive:
        return
    stopped.clear()
    connection.tell(Drain())
    log.info("stopping: at most %g s for streams in progress to end", drain_s)
    n_beats = connection.pulse.n_beats
    try:
        async with asyncio.timeout(drain_s):
            while not stopped.is_set() and connection.is_alive:
                await asyncio.sleep(DRAIN_LOOK_S)
                last = connection.pulse.last
                # The first heartbeats may have been on their way before it heard of this.
                if (
                    last is not None
                    and connection.pulse.n_beats > n_beats + 1
                    and not last.n_streams
                ):
                    return
    except TimeoutError:
        pass
