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
from benchmarks.harness.harness import RESULTS, Bar, bar_table, results, write_results
from clients import command
from clients.arguments import whole_number
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


def add_seed(parser: argparse.ArgumentParser, of: str) -> None:
    """``--seed``; ``of``: what it draws."""
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help=f"{of} (default: %(default)s)"
    )


def add_check(parser: argparse.ArgumentParser) -> None:
    """``--check``: whether a missed bar is a failure."""
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")


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


def judged(
    name: str,
    chosen: argparse.Namespace,
    settings: dict[str, Any],
    bars: Sequence[Bar],
    partial: str | None,
    **figures: Any,
) -> int:
    """Print the bars, write the results and say where; the exit code. ``chosen``: with ``check``,
    and ``seed`` where the benchmark has one."""
    print(bar_table(bars))
    seed = getattr(chosen, "seed", 0)
    path = write_results(results(name, seed, settings, bars, partial=partial, **figures))
    print(f"written: {path}")
    return exit_code(bars, partial, is_checked=chosen.check)


def exit_code(bars: Sequence[Bar], partial: str | None, *, is_checked: bool) -> int:
    """0; 1 where a bar is missed that was to be checked; 130 or 2 after an early end."""
    if partial is not None:
        return command.EXIT_INTERRUPTED if partial == INTERRUPTED else command.EXIT_BAD_INPUT
    is_missed = is_checked and not all(bar.holds for bar in bars)
    return command.EXIT_FAILED if is_missed else 0
