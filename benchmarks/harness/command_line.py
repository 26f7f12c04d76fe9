"""The command line of every benchmark, from its options to its exit code.

A benchmark of calls that is interrupted, or whose server goes, writes what it has by then as the
part it is: ``partial`` says why, the file's name ends in it, and no bar is judged.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any

from audio.errors import AudioError
from benchmarks.harness.harness import RESULTS, Bar, bar_table, results, write_results
from clients import command
from clients.arguments import number, whole_number
from clients.errors import ClientError
from clients.outputs import prepare_folder
from engine.types import EngineError
from voiceloop.errors import VoiceLoopError

INTERRUPTED = "interrupted"
NOTHING_WRITTEN = "nothing is written"


def run(main: Callable[[], int], loss: str = NOTHING_WRITTEN) -> int:
    """The exit code of a benchmark; ``loss``: what ctrl-C costs where it is not seen to."""
    return command.run(main, (AudioError, EngineError, VoiceLoopError), loss=loss)


class Benchmark:
    """One command. parser: for options that the methods below do not make.

    partial: why the measuring ended early; None where it did not.
    """

    def __init__(self, name: str, description: str, *, seed: str = "", check: bool = True) -> None:
        """seed: what ``--seed`` draws, empty where nothing is drawn; check: takes ``--check``."""
        self.name = name
        self.partial: str | None = None
        self.parser = argparse.ArgumentParser(
            prog=f"python -m benchmarks.{name}",
            description=description,
            epilog=f"Results go to {RESULTS}/ as JSON with commit, machine, settings and date.",
        )
        self._chosen = argparse.Namespace()
        if seed:
            self.count("--seed", 0, f"draws {seed}", at_least=0)
        if check:
            self.switch("--check", "exit with 1 where a bar is missed")

    def count(
        self,
        flag: str,
        default: int | None,
        help: str,
        *,
        at_least: int = 1,
        at_most: int | None = None,
    ) -> None:
        """An option that takes a whole number within these bounds."""
        told = help if default is None else f"{help} (default: %(default)s)"
        read = whole_number(at_least, at_most)
        self.parser.add_argument(flag, type=read, default=default, metavar="N", help=told)

    def amount(
        self,
        flag: str,
        default: float,
        unit: str,
        help: str,
        *,
        above: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """An option that takes a number of this unit within these bounds."""
        read = number(unit, above=above, at_least=at_least)
        told = f"{help} (default: %(default)g)"
        self.parser.add_argument(flag, type=read, default=default, metavar="X", help=told)

    def switch(self, flag: str, help: str) -> None:
        """An option that is on or off."""
        self.parser.add_argument(flag, action="store_true", help=help)

    def choice(self, flag: str, names: Iterable[str], default: str, help: str) -> None:
        """An option that takes one of these names."""
        told = f"{help} (default: %(default)s)"
        self.parser.add_argument(flag, choices=tuple(names), default=default, help=told)

    def several(
        self, flag: str, names: Sequence[str], help: str, *, dest: str | None = None
    ) -> None:
        """An option that may be given again, each time with one of these names."""
        told = f"{help}; of {', '.join(map(repr, names))}; may be given again"
        self.parser.add_argument(
            flag, action="append", choices=tuple(names), metavar="NAME", help=told, dest=dest
        )

    def parse(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """What was chosen, once the folder of the results is there."""
        self._chosen = self.parser.parse_args(arguments)
        prepare_folder(RESULTS)
        return self._chosen

    def measure(self, work: Coroutine[Any, Any, object]) -> None:
        """Do the work, which keeps what it measures, and keep why it ended early."""
        try:
            asyncio.run(work)
        except KeyboardInterrupt:
            self.interrupt()
            print(INTERRUPTED, file=sys.stderr)
        except ClientError as error:
            self.partial = str(error)
            print(error, file=sys.stderr)

    def interrupt(self) -> None:
        """A person ended the measuring."""
        self.partial = INTERRUPTED

    def without_results(self, why: str = "nothing had been measured") -> int:
        """The exit code where nothing had been measured."""
        if self.partial in (None, INTERRUPTED):
            print(f"{why}: {NOTHING_WRITTEN}", file=sys.stderr)
        self.partial = self.partial or why
        return self.exit_code(())

    def write(
        self, settings: dict[str, Any], bars: Sequence[Bar] = (), *, name: str = "", **figures: Any
    ) -> Path:
        """Write the results and say where. name: of the results, where it is not the command's."""
        seed = getattr(self._chosen, "seed", 0)
        judged = [] if self.partial else bars
        path = write_results(
            results(name or self.name, seed, settings, judged, partial=self.partial, **figures)
        )
        print(f"results{' of the part that ran' if self.partial else ''}: {path}")
        return path

    def finish(self, settings: dict[str, Any], bars: Sequence[Bar] = (), **figures: Any) -> int:
        """Print the bars, write the results, and return the exit code."""
        if bars and not self.partial:
            print(bar_table(bars))
        self.write(settings, bars, **figures)
        return self.exit_code(bars)

    def exit_code(self, bars: Sequence[Bar]) -> int:
        """0; 1 where a bar is missed that was to be checked; 130 or 2 after an early end."""
        if self.partial is not None:
            is_stopped = self.partial == INTERRUPTED
            return command.EXIT_INTERRUPTED if is_stopped else command.EXIT_BAD_INPUT
        is_checked = bool(getattr(self._chosen, "check", False))
        is_missed = is_checked and not all(bar.holds for bar in bars)
        return command.EXIT_FAILED if is_missed else 0
