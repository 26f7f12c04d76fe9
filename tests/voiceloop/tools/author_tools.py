"""Functions as an author of an agent writes them, called in a process of their own."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import subprocess
import sys
import time
from typing import Any


def price(kind: str, n: int = 1) -> dict[str, Any]:
    print("printed by the author")  # must not come between the messages
    os.write(1, b"written past sys.stdout")
    return {"kind": kind, "cost": 3 * n}


def whose(item: str, caller: dict[str, Any]) -> dict[str, Any]:
    return {"item": item, "caller": caller}


def anything(**fields: Any) -> dict[str, Any]:
    return fields


async def hours(day: str) -> str:
    await asyncio.sleep(0)
    return f"{day}: nine to five"


def fail() -> None:
    raise ValueError("no such thing")


def block() -> str:
    time.sleep(3600)
    return "never"


async def wait() -> str:
    await asyncio.sleep(3600)
    return "never"


def crash() -> None:
    os._exit(3)


def odd() -> object:
    return object()


def long() -> str:
    return "x" * 2**21


def process_id() -> int:
    return os.getpid()


def mixed(how: str) -> str:
    """By what it is asked: block, or say which process this is."""
    return block() if how == "block" else str(os.getpid())


def exit_on_purpose() -> None:
    sys.exit(2)


def variables() -> dict[str, str]:
    return dict(os.environ)


def start_another() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def crash_beside_another(path: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(str(start_another()))
    crash()


def open_socket(family: str) -> str:
    socket.socket(getattr(socket, family)).close()
    return "opened"


def open_socket_in_another() -> str:
    script = "import socket; socket.socket()"
    return str(subprocess.run([sys.executable, "-c", script], capture_output=True).returncode)


def reach(number: int) -> str:
    """Make this system call upon the process that started this one."""
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(number, os.getppid(), 0, 0, 0, 0, 0)
    return f"{result} {ctypes.get_errno()}"


def fill(n_bytes: int) -> int:
    return len(bytearray(n_bytes))


def limits() -> list[int]:
    return [resource.getrlimit(what)[1] for what in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)]
