"""Functions as an author of an agent writes them, called in a process of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any


def price(kind: str, n: int = 1) -> dict[str, Any]:
    print("printed by the author")  # must not come between the messages
    os.write(1, b"written past sys.stdout")
    return {"kind": kind, "cost": 3 * n}


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
