"""The command line of every benchmark: its parser, its exit codes, and what an early end leaves.

A benchmark of calls that is interrupted, or whose server goes, writes what it has by then as the
part it is: ``partial`` says why, the file's name ends in it, and no bar is judged. The others say
that nothing is written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from audio.errors import AudioError
from benchmarks.harness.harness import RESULTS, Bar
from clients import command
from clients.errors import ClientError
from engine.types import EngineError
from voiceloop.errors import VoiceLoopError

INTERRUPTED = "interrupted"
NOTHING_WRITTEN = "nothing is written"


def benchmark_parser(
    name: str, description: str, *, folder: str = f"{RESULTS}/"
) -> argparse.ArgumentParser:
    """``folder``: where the results go, as the help tells it."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        epilog=f"Results go to {folder} as JSON with commit, machine, settings and date.",
    )


def run(main: Callable[[], int], loss: str = NOTHING_WRITTEN) -> int:
    """The exit code of a benchmark; ``loss``: what ctrl-C costs where it is not seen to."""
    return command.run(main, (AudioError, EngineError, VoiceLoopError), loss=loss)


def early_end(work: Coroutine[Any, Any, object]) -> str | None:
    """Do the work, which keeps what it measures: why it ended early, None where it did not."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return INTERRUPTED
    except ClientError as error:
        print(error, file=sys.stderr)
        return str(error)
    return None


def without_results(partial: str) -> int:
    """The exit code where nothing had been measured; an interruption says so."""
    if partial == INTERRUPTED:
        print(f"nothing had been measured: {NOTHING_WRITTEN}", file=sys.stderr)
    return exit_code((), partial, is_checked=False)


def exit_code(bars: Sequence[Bar], partial: str | None, *, is_checked: bool) -> int:
    """0; 1 where a bar is missed that was to be checked; 130 or 2 after an early end."""
    if partial is not None:
        return command.EXIT_INTERRUPTED if partial == INTERRUPTED else command.EXIT_BAD_INPUT
    is_missed = is_checked and not all(bar.holds for bar in bars)
    return command.EXIT_FAILED if is_missed else 0
