"""The processes that a server starts: told to end, killed, waited for, and started anew in time.

Knows nothing of what such a process does. Whoever starts one owns it, and ends it with these.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from asyncio.subprocess import Process
from contextlib import suppress

SETTINGS = "VOICELOOP_"  # what the names of our own variables begin with
RESTART_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)


def restart_pause_s(n_failures: int, least_s: float = 0.0) -> float:
    """Seconds to wait before the next start: longer with each failure, and never quite the same.

    Servers that lost the same thing at once do not all come back for it at once.
    """
    pause_s = RESTART_PAUSES_S[min(n_failures, len(RESTART_PAUSES_S) - 1)]
    return max(pause_s, least_s) * random.uniform(0.75, 1.25)


def without_settings() -> dict[str, str]:
    """Return this process's environment without VoiceLoop's own variables, keys above all."""
    return {name: text for name, text in os.environ.items() if not name.startswith(SETTINGS)}


def send(process: Process, number: signal.Signals) -> bool:
    """Send a signal. Returns False where the process has ended by itself."""
    if process.returncode is not None:
        return False
    try:
        process.send_signal(number)
    except ProcessLookupError:
        return False
    return True


def kill_group(first: int) -> None:
    """Kill the first process of a group with all that it has started. first: 0 for our own."""
    with suppress(ProcessLookupError, PermissionError):  # nobody of it is left; the last one ends
        os.killpg(first, signal.SIGKILL)


async def ended(process: Process, within_s: float) -> bool:
    """Wait for a process that was asked to end; kill it where it does not.

    Returns False where it does not end although it was killed: the kernel holds it (a device, a
    network disk), and it cannot touch anything of ours.
    """
    for _ in range(2):
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
            return True
        except TimeoutError:
            send(process, signal.SIGKILL)
    return False
