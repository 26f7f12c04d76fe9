"""A phone call as every room may know it: who calls whom, and what its far end can do.

Owns those two shapes. The doors make them (`doors/carriers/`, `doors/pbx/`, `doors/sip/`); the
call, its tools and its recording read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

KEYS = frozenset("0123456789*#ABCD")  # of a telephone, with the fourth column of RFC 4733
WITHHELD = ""


@dataclass(frozen=True, slots=True)
class PhoneCall:
    """Who calls whom, as the carrier or the PBX tells it.

    door: ``twilio``, ``asterisk``, ``sip`` and so on. caller, called: a number, mostly as E.164
    writes it, or a SIP address; WITHHELD where it is not told. headers: those of `phone.headers`,
    by their names as written there. ids: the provider's own, ``call`` among them. returned: why a
    transfer of this call failed, which brings the caller back; empty otherwise. is_outbound: we
    have dialled.
    """

    door: str
    caller: str = field(default=WITHHELD, repr=False)
    called: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ids: Mapping[str, str] = field(default_factory=dict)
    returned: str = ""
    is_outbound: bool = False


@dataclass(frozen=True, slots=True)
class Announcement:
    """What whoever takes a transferred call hears before the caller is there.

    sound: the text in the agent's voice, PCM16 at 24 kHz; a line may say the text itself.
    """

    text: str
    sound: bytes = b""


class PhoneLine(Protocol):
    """What can be done with a call whose far end is a telephone.

    What a line cannot do raises `NotOnThisLine`, and nothing has happened.
    """

    async def hang_up(self) -> None:
        """End the call of the telephone. The line ends with it; idempotent."""

    async def transfer(self, target: str, announcement: Announcement | None = None) -> None:
        """Connect the caller with somebody else. target: ``tel:`` or ``sip:``, checked by then.
        announcement: None of a blind transfer.

        Returns once the far end has taken the caller over; the line then ends by itself. Where
        the caller comes back, that is another call with `PhoneCall.returned`. Raises:
        TransferFailed: nobody answers there, and the caller is still here.
        """

    async def send_digits(self, digits: str) -> None:
        """Press these KEYS for the caller's side, ``w`` waits half a second; returns when sent."""
