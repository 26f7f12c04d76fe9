"""The calls of a gateway that came by other doors, by the id that their clients know them by.

Owns who may reach one from beside: whoever has a key of the same tenant. Pure.
"""

from __future__ import annotations

import secrets

from voiceloop.doors.desk import Desk
from voiceloop.doors.line import Line
from voiceloop.errors import CallElsewhere, UnknownCall


class Calls:
    """The calls of one gateway. is_shared: its port is others' too, and each has its own calls."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.is_shared = False
        self._own = f"rtc_{secrets.token_hex(4)}"  # of this gateway's calls, no other's
        self._calls: dict[str, Line] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def new_id(self) -> str:
        """Return a new id of a call; nobody can guess it."""
        return f"{self._own}{secrets.token_hex(12)}"

    def add(self, line: Line, call_id: str = "") -> str:
        """A call begins; returns its id, a new one where it has none."""
        call_id = call_id or self.new_id()
        self._calls[call_id] = line
        return call_id

    def drop(self, call_id: str) -> None:
        """Drop a call that is over."""
        del self._calls[call_id]

    def _of_carrier(self, call_id: str) -> Line | None:
        phones = ((line.hello.phone, line) for line in self._calls.values())
        return next((line for one, line in phones if one and call_id and one.id == call_id), None)

    def find(self, call_id: str, tenant: str) -> Line:
        """The call of this id of ours, or of its carrier's.

        Raises: UnknownCall, also where it is another's: nobody learns that it is there.
        CallElsewhere: it is of a gateway beside this one, if it goes on.
        """
        line = self._calls.get(call_id) or self._of_carrier(call_id)
        if self.is_shared and line is None and not call_id.startswith(self._own):
            raise CallElsewhere(
                "Another server of this port may have the call. Connect again, until that one "
                "takes the connection.",
                param="call_id",
            )
        if line is None or line.hello.tenant != tenant:
            raise UnknownCall(
                f"No call with the id {call_id[:80]!r} goes on for this key.",
                param="call_id",
            )
        return line
