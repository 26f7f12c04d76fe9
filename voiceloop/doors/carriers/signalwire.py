"""SignalWire: Twilio's dialect in cXML, signed with a key and a header of its own. Pure.

Whether it signs the upgrade its pages do not say: there the ticket of the signed answer is the
proof. Source: signalwire.com/docs/compatibility-api/cxml; /server-sdks, "Webhook signature".
"""

from __future__ import annotations

from typing import ClassVar

from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.carriers.twilio import Twilio


class SignalWire(Twilio):
    """As `Twilio`. token: the project's signing key; account: the project's id, "" for any."""

    name: ClassVar[str] = "signalwire"
    signature: ClassVar[str] = "x-signalwire-signature"

    def prove_stream(self, asked: wire.Asked) -> bool:
        is_signed = asked.headers.get(self.signature) is not None
        return is_signed and super().prove_stream(asked)
