"""A phone call as every room may know it: who calls whom, and what its far end can do.

Owns those two shapes. The doors make them (`doors/carriers/`, `doors/pbx/`, `doors/sip/`); the
call, its tools and its recording read them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

KEYS = frozenset("0123456789*#ABCD")  # of a telephone, with the fourth column of RFC 4733
WITHHELD = ""
NAMED = re.compile(r"\{caller\.([A-Za-z0-9-]+)\}")
MAX_VALUE_CHARS = 200  # of a header in a text of the agent's


@dataclass(frozen=True, slots=True)
class PhoneCall:
    """A telephone's call: who calls whom, as the carrier or the PBX tells it.

    door: ``twilio``, ``asterisk``, ``sip`` and so on. caller, called: a number, mostly as E.164
    writes it, or a SIP address; WITHHELD where it is not told. headers: those of `phone.headers`,
    by their names as written there. id: as its carrier or exchange names the call. returned: why a
    transfer of this call failed, which brings the caller back; empty otherwise. is_outbound: we
    have dialled.
    """

    door: str
    caller: str = field(default=WITHHELD, repr=False)
    called: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    id: str = ""
    returned: str = ""
    is_outbound: bool = False

    def filled(self, text: str) -> str:
        """A text of the agent's with what it names of the call: ``{caller.number}``,
        ``{caller.called}``, ``{caller.X-Order}`` of an allowed header. What is not told is
        "unknown".
        """
        known = {"number": self.caller, "called": self.called, **self.headers}
        small = {name.lower(): value for name, value in known.items()}
        return NAMED.sub(lambda found: _plain(small.get(found[1].lower(), "")), text)


@dataclass(frozen=True, slots=True)
class Announcement:
    """The words that whoever takes a transferred call hears before the caller is there.

    sound: the text in the agent's voice, PCM16 at 24 kHz; a line may say the text itself.
    """

    text: str
    sound: bytes = b""


class PhoneLine(Protocol):
    """The line of a call whose far end is a telephone, and what can be done with it.

    What a line cannot do raises `NotOnThisLine`, and nothing has happened.
    """

    async def hang_up(self) -> None:
        """End the call of the telephone. The line ends with it; idempotent."""

    async def transfer(self, target: str, announcement: Announcement | None = None) -> None:
        """Connect the caller with somebody else. target: ``tel:`` or ``sip:``, checked by then.

        announcement: said to them first, None of a blind transfer; a line that cannot do that
        raises `NotOnThisLine`, and is asked again without. Returns once the far end has taken the
        caller over; the line then ends by itself. Where the caller comes back, that is another call
        with `PhoneCall.returned`.
        Raises: TransferFailed: nobody answers there, and the caller is still here.
        """

    async def send_digits(self, digits: str) -> None:
        """Press these KEYS for the caller's side, ``w`` waits half a second; returns when sent."""


def _plain(value: str) -> str:
    """A value of a stranger's as one line of plain characters."""
    line = "".join(
        letter if letter.isprintable() and letter not in "{}<>" else " " for letter in value
    )
    return " ".join(line.split())[:MAX_VALUE_CHARS] or "unknown"


NO_PHONE = PhoneCall("")  # of a line that is no telephone
