"""A gateway does not stay as large as the largest thing that was ever sent to it."""

from __future__ import annotations

import asyncio
import gc
import platform
import subprocess
import sys
import weakref
from typing import NoReturn

import pytest

from tests.waiting import until
from voiceloop.config import Config
from voiceloop.server import memory, serve_command

# A large frame is freed; then others come and go, and a little is kept of what comes meanwhile.
GROWN_MB = """
from voiceloop.server.memory import give_back_large_blocks
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
{begin}
before_mb = resident_mb()
frame = b"x" * (8 << 20)
del frame
kept = []
for n in range(20):
    large = [b"y" * (1000 * size) for size in (300 + 80 * n, 700, 1900)]
    kept.append([bytes(700) for _ in range(30)])
    del large
print(resident_mb() - before_mb)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have other rules")
def test_large_blocks_that_are_freed_go_back_though_others_are_kept() -> None:
    def grown_mb(begin: str) -> float:
        ran = [sys.executable, "-c", GROWN_MB.format(begin=begin)]
        return float(subprocess.run(ran, capture_output=True, check=True, text=True).stdout)

    assert grown_mb("give_back_large_blocks()") < 2.0 < grown_mb("")  # kept: 0.4 MB


# What many calls were served with is freed, all but a little of each.
HOLES_MB = """
from voiceloop.server.memory import give_back_large_blocks, give_back_pages
def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
give_back_large_blocks()
before_mb, kept = resident_mb(), []
for call in range(200):
    served = [bytes(60_000) for _ in range(2)]
    kept.append((served[0], bytes(600)))
kept = [small for _, small in kept]
{after}
print(resident_mb() - before_mb)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries have other rules")
def test_once_nobody_talks_the_holes_between_what_is_kept_go_back() -> None:
    def left_mb(after: str) -> float:
        ran = [sys.executable, "-c", HOLES_MB.format(after=after)]
        return float(subprocess.run(ran, capture_output=True, check=True, text=True).stdout)

    assert left_mb("give_back_pages()") < 2.0 < left_mb("")


class Call:
    """A circle, as a session is."""

    def __init__(self) -> None:
        self.own = self


async def test_what_calls_held_is_let_go_of_once_none_is_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "LOOK_S", 0.0)
    n_inside = [1]
    watching = asyncio.create_task(memory.watch_memory(lambda: n_inside[0]))
    await asyncio.sleep(0)  # what is there by now is out of the collector's sight
    gc.disable()
    try:
        left = weakref.ref(Call())
        await asyncio.sleep(0)
        assert left() is not None
        n_inside[0] = 0
        await until(lambda: left() is None)
    finally:
        gc.enable()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        gc.unfreeze()


def test_a_server_begins_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Begun(Exception):
        pass

    def begin() -> NoReturn:
        raise Begun

    monkeypatch.setattr(serve_command, "give_back_large_blocks", begin)
    with pytest.raises(Begun):
        serve_command._run(Config(), [])
