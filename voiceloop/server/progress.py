"""The messages of ``voiceloop serve`` and ``worker`` to a person on standard error: quiet by
default.

A line for each model as it gets ready; then the address of calls and that of the page.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from voiceloop.workers.status import RoleState


class ServeProgress:
    """Hand ``serve`` its `role_changed` and `ready`.

    notes: lines about the choice of the preset, told once the server has begun to load it.
    """

    def __init__(self, notes: Sequence[str] = ()) -> None:
        self._notes = tuple(notes)
        self._loading: set[str] = set()
        self._is_announced = False

    def role_changed(self, state: RoleState) -> None:
        """A model is starting, loading, ready, restarting or stopped."""
        self._tell_notes()
        if state.state != "ready":
            self._loading.add(state.role)
        elif state.role in self._loading and not self._is_announced:
            self._loading.remove(state.role)
            told = f"; {state.detail}" if state.detail else ""
            took_s = state.load_ms / 1000
            print(f"{state.role}: ready after {took_s:.1f} s{told}", file=sys.stderr)

    def ready(self, url: str) -> None:
        """The server takes calls at ``url``."""
        self._tell_notes()
        self._is_announced = True
        address = url.replace("http", "ws", 1)
        print(f"voiceloop is ready: {address}/v1/realtime", file=sys.stderr)
        print(f"talk to it: open {_page_of(url)} in a browser", file=sys.stderr, flush=True)

    def _tell_notes(self) -> None:
        notes, self._notes = self._notes, ()
        for note in notes:
            print(note, file=sys.stderr)


def _page_of(url: str) -> str:
    """The page's address as this machine's browser takes it: no browser goes to 0.0.0.0."""
    parts = urlsplit(url)
    if parts.hostname in ("0.0.0.0", "::"):
        return urlunsplit((parts.scheme, f"localhost:{parts.port}", "/", "", ""))
    return f"{url}/"
