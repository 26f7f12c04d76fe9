"""What ``voiceloop serve`` tells a person on standard error while its models load.

A bar of the models that are ready where that is a terminal; one line per model where it is a log
file. After that the address of the page and that of calls: quiet by default.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from voiceloop.workers.status import RoleState


class ServeProgress:
    """Use as a context manager around ``serve``; hand it ``role_changed`` and ``ready``.

    notes: lines about the choice of the preset, told once the server has begun to load it.
    """

    def __init__(self, preset: str, notes: Sequence[str] = ()) -> None:
        self._preset = preset
        self._notes = tuple(notes)
        self._states: dict[str, str] = {}
        self._announced = False
        self._engine = ""  # what runs there, in words
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> ServeProgress:
        if sys.stderr.isatty():
            # Imported here: rich takes 60 ms, and a server under a process manager never needs it.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task(f"loading the {self._preset} models", total=None)
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop_bar()

    def role_changed(self, state: RoleState) -> None:
        """A model is starting, loading, ready, restarting or stopped."""
        self._tell_notes()
        before = self._states.get(state.role)
        self._states[state.role] = state.state
        if state.role == "engine":
            self._engine = state.detail
        if self._announced:
            return
        if self._bar is not None and self._task is not None:
            n_ready = sum(state == "ready" for state in self._states.values())
            waiting = ", ".join(r for r, s in self._states.items() if s != "ready")
            self._bar.update(
                self._task,
                total=len(self._states),
                completed=n_ready,
                description=f"loading {waiting}" if waiting else "starting",
            )
        elif state.state == "ready" and before != "ready":
            told = f"; {state.detail}" if state.detail else ""
            print(f"{state.role}: ready after {state.load_ms / 1000:.1f} s{told}", file=sys.stderr)

    def ready(self, url: str) -> None:
        """The server takes calls at ``url``."""
        is_terminal = self._bar is not None
        self._stop_bar()
        self._tell_notes()
        self._announced = True
        if is_terminal and self._engine:  # a log file has it in its own line
            print(f"language model: {self._engine}", file=sys.stderr)
        address = url.replace("http", "ws", 1)
        print(f"voiceloop is ready: {address}/v1/realtime", file=sys.stderr)
        print(f"talk to it: open {_page_of(url)} in a browser", file=sys.stderr, flush=True)

    def _tell_notes(self) -> None:
        notes, self._notes = self._notes, ()
        for note in notes:
            if self._bar is not None:
                self._bar.console.print(note, highlight=False, markup=False, soft_wrap=True)
            else:
                print(note, file=sys.stderr)

    def _stop_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _page_of(url: str) -> str:
    """The page's address as this machine's browser takes it: no browser goes to 0.0.0.0."""
    parts = urlsplit(url)
    if parts.hostname in ("0.0.0.0", "::"):
        return urlunsplit((parts.scheme, f"localhost:{parts.port}", "/", "", ""))
    return f"{url}/"
