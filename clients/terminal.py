"""The console that commands print on: one whose reader goes ends them as ctrl-C does."""

from __future__ import annotations

import signal

from rich.console import Console


class Terminal(Console):
    """rich's own console would raise ``SystemExit`` in the midst of the event loop."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's job in the background
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)
