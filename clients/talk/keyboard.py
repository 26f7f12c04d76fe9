"""Single key presses of a terminal, for push to talk: it tells no release, so a key switches."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from clients.errors import DeviceMissing

MAX_WAITING_KEYS = 16  # of a key that is held down


@contextmanager
def key_presses(stream: int | None = None) -> Iterator[asyncio.Queue[str]]:
    """A queue of the keys that are pressed while the context is open; ctrl-C stays ctrl-C.

    stream: the terminal's file descriptor (default: standard input).

    Raises:
        DeviceMissing: that is no terminal, or this system has none that tells single keys.
    """
    try:
        import termios
        import tty
    except ImportError as error:  # Windows
        raise DeviceMissing(
            "expected a terminal that tells single keys for --push-to-talk, found none on this "
            "system: use the server's page"
        ) from error
    terminal = sys.stdin.fileno() if stream is None else stream
    if not os.isatty(terminal):
        raise DeviceMissing("expected a terminal for --push-to-talk, found none at standard input")
    keys: asyncio.Queue[str] = asyncio.Queue(MAX_WAITING_KEYS)

    def pressed() -> None:
        for key in os.read(terminal, 64).decode(errors="ignore"):
            if not keys.full():
                keys.put_nowait(key)

    loop = asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    loop.add_reader(terminal, pressed)
    try:
        yield keys
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
