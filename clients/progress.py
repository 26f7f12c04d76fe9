"""A progress bar on a terminal for whatever takes more than two seconds; elsewhere nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from clients.terminal import Terminal


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function to be told how much of ``total`` is done; the bar vanishes at the end."""
    console = Terminal(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,  # else an empty line is left
    )
    task = bar.add_task(what, total=total)
    with bar:
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def spinner(what: str, console: Console) -> Iterator[None]:
    """Show progress of unknown length: a spinner and the time that has passed."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    bar.add_task(what, total=None)
    with bar:
        yield
