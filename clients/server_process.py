"""A server of one's own: started as a process on a free loopback port, stopped at the end.

The demo and the benchmarks run the real command, ``voiceloop serve``, so what they measure is what
a person gets. This file knows the server by its command line, its ``/readyz`` and its exit code.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from clients.errors import ServerDidNotStart

SERVE = (sys.executable, "-P", "-m", "voiceloop", "serve")
# Two idle cores load the models in 4 s, two that some 25 others share in 24 to more than 60.
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 15.0
# A process beside the server that ends it when we are gone. Its standard input is a pipe whose
# other end only we hold: however we end, a SIGKILL included, the pipe closes and ``read`` returns.
GUARD_SCRIPT = """
read _
kill -TERM "$0"
for _ in $(seq "$1"); do sleep 1; kill -0 -- "-$0" || exit; done
kill -KILL -- "-$0"
"""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that answered ``/readyz``; ``ready_s`` is how long that took from its start."""

    pid: int
    port: int
    ready_s: float
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"ws{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1/realtime"

    def resident_mb(self) -> float:
        """Resident memory of the server and all its workers, in MB (10**6 bytes).

        Summed over the processes: a page two of them share counts twice.
        """
        return sum(_resident_bytes(pid) for pid in process_tree(self.pid)) / 1e6


def free_port() -> int:
    """One that is free for connections and for datagrams."""
    while True:
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as other:
            probe.bind(("127.0.0.1", 0))
            with suppress(OSError):
                other.bind(probe.getsockname())
                return int(probe.getsockname()[1])


@asynccontextmanager
async def running_server(
    arguments: Sequence[str] = (),
    *,
    command: Sequence[str] = SERVE,
    log: Path | None = None,
    ready_timeout_s: float = READY_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[ServerProcess]:
    """Start ``command --port N arguments``, wait until it is ready, stop it at the end.

    Args:
        log: where its standard output and error go; None drops them but for the error message.
        environment: what is added to this process's own.
        tls: how it is spoken to, where the arguments have it encrypt.

    Raises:
        ServerDidNotStart: it ended by itself or was not ready in time; the message carries the
            last line it wrote.
    """
    port = free_port()
    path = log or Path(os.devnull)
    with path.open("wb") as sink:  # noqa: ASYNC230 - once, before anything runs
        started_at = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command, "--port", str(port), *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=sink, stderr=sink,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # ctrl-C reaches us alone; we stop the server ourselves
        )  # fmt: skip
    guard: asyncio.subprocess.Process | None = None
    try:
        guard = await _start_guard(process.pid)
        await _wait_until_ready(process, port, started_at, ready_timeout_s, path, tls)
        yield ServerProcess(process.pid, port, time.monotonic() - started_at, tls)
    finally:
        await _stop(process)
        if guard is not None:  # after the server: were we killed while it stops, it is seen to
            guard.kill()
            await guard.wait()


async def _start_guard(pid: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "sh", "-c", GUARD_SCRIPT, str(pid), str(round(STOP_TIMEOUT_S)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,  # what is sent to our whole group must not end it before its task
    )  # fmt: skip


async def _wait_until_ready(
    process: asyncio.subprocess.Process,
    port: int,
    started_at: float,
    within_s: float,
    log: Path,
    tls: ssl.SSLContext | None,
) -> None:
    while time.monotonic() < started_at + within_s:
        if process.returncode is not None:
            raise ServerDidNotStart(
                f"the server ended with exit code {process.returncode}: {_last_line(log)}"
            )
        if await http_status(port, "/readyz", tls) == 200:
            return
        await asyncio.sleep(0.05)
    raise ServerDidNotStart(
        f"expected the server ready in {within_s:.0f} s (is this machine busy?), last log: "
        f"{_last_line(log)}"
    )


async def http_status(port: int, path: str, tls: ssl.SSLContext | None = None) -> int | None:
    """The status of one GET on the loopback; None if no answer comes within a second."""
    try:
        async with asyncio.timeout(1.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
            asked = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
            try:
                writer.write(asked.encode())
                status_line = await reader.readline()
            finally:
                writer.close()
        return int(status_line.split()[1])
    except (OSError, TimeoutError, IndexError, ValueError):
        return None


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        for pid in reversed(process_tree(process.pid)):
            with suppress(ProcessLookupError):  # it ended while we looked
                os.kill(pid, signal.SIGKILL)
        await process.wait()


def _last_line(log: Path) -> str:
    if not log.is_file():
        return "it wrote no log"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it wrote nothing"


def process_tree(pid: int) -> list[int]:
    """The process and all its descendants (Linux)."""
    found = [pid]
    for parent in found:
        for task in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found.extend(int(child) for child in task.read_text().split())
            except OSError:
                continue  # it ended while we looked
    return found


def _resident_bytes(pid: int) -> int:
    try:
        n_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0  # it ended while we looked
    return n_pages * os.sysconf("SC_PAGE_SIZE")
