"""The whole suite: which checks there are, and how they are run against one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np
from websockets.exceptions import ConnectionClosed

from clients.call.script import CALL_FOLDER
from clients.conformance import (
    door_checks,
    event_checks,
    frame_checks,
    input_checks,
    item_checks,
    overlap_checks,
    response_checks,
    session_checks,
    speech_checks,
    tool_checks,
)
from clients.conformance.check import Check, Failed, Outcome, Result, Skipped, Target
from clients.conformance.line import check_reachable
from clients.connection import RATE_HZ
from clients.errors import ConformanceError
from clients.recording import Samples, read_flac

SPEECH = "1_hours"
CHECK_LIMIT_S = 120.0  # a server that answers each wait in the last moment

ALL: tuple[Check, ...] = tuple(
    check
    for module in (
        door_checks, session_checks, event_checks, frame_checks, response_checks, overlap_checks,
        item_checks, tool_checks, input_checks, speech_checks,
    )
    for check in module.checks.all
)  # fmt: skip


def chosen(names: Sequence[str]) -> tuple[Check, ...]:
    """The checks of these names or topics, all where none is given.

    Raises:
        ConformanceError: there is no such check.
    """
    known = {check.name for check in ALL} | {check.topic for check in ALL}
    for name in names:
        if name not in known:
            raise ConformanceError(f"expected the name of a check (see --list), found {name!r}")
    return tuple(c for c in ALL if not names or c.name in names or c.topic in names)


def recorded_speech(name: str = SPEECH) -> Samples:
    """An utterance of the bundled caller, int16 at 24 kHz."""
    samples = read_flac(CALL_FOLDER / "heart" / f"{name}.flac").at_rate(RATE_HZ).samples
    return np.ascontiguousarray(samples)


async def run_suite(
    target: Target,
    checks: Sequence[Check] = ALL,
    *,
    jobs: int = 1,
    on_result: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Try the checks, ``jobs`` at a time, each on connections of its own; results in their order.

    Raises:
        ConnectionFailed: there is no server to check.
    """
    await check_reachable(target)
    free = asyncio.Semaphore(jobs)

    async def attempt(check: Check) -> Result:
        async with free:
            result = await run_check(check, target)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(attempt(check)) for check in checks]
    return [task.result() for task in tasks]


async def run_check(check: Check, target: Target) -> Result:
    started = time.monotonic()
    outcome: Outcome = "pass"
    sentence = check.rule
    try:
        async with asyncio.timeout(CHECK_LIMIT_S):
            await check.attempt(target)
    except Skipped as skipped:
        outcome, sentence = "skip", str(skipped)
    except Failed as failed:
        outcome, sentence = "fail", str(failed)
    except (TimeoutError, ConnectionClosed) as error:
        outcome, sentence = "fail", f"expected the check to come to its end, found {error!r}"
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        # A field of another type than the protocol's: the check read it as what it must be.
        outcome, sentence = "fail", f"expected the protocol's types, found {error!r}"
    return Result(check, outcome, sentence, time.monotonic() - started)
