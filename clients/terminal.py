"""The console that commands print on: one whose reader goes ends them as ctrl-C does."""

from __future__ import annotations

import signal

from rich.console import Console


class Terminal(Console):
    """rich's own console would raise ``SystemExit`` in the midst of the event loop."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        signal.raise_signal(signal.SIGINT)
