"""The doors of the telephones that this server's configuration names, and no others.

Owns which there are. What one of them needs is imported here, where it is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.routing import Route

from voiceloop.doors.calls import Calls
from voiceloop.doors.entrance import Server
from voiceloop.errors import ConfigError
from voiceloop.phone_settings import EXCHANGES, PhoneSettings

if TYPE_CHECKING:
    from voiceloop.doors.carriers.door import CarrierDoor
    from voiceloop.doors.pbx.door import AsteriskDoor
    from voiceloop.doors.sip.door import SipDoor


class Telephones:
    """The telephones of one gateway."""

    def __init__(self, server: Server, calls: Calls) -> None:
        self._server = server
        self._calls = calls
        self.sip: SipDoor | None = None
        self.routes: list[Route] = []
        self.sockets: list[CarrierDoor | AsteriskDoor] = []  # whose streams are WebSockets
        self._close: list[Callable[[], None]] = []
        settings = server.config.phone
        if settings.carriers:
            self._open_carriers(server, calls, settings)
        if settings.secrets.keys() & set(EXCHANGES):
            self._open_exchanges(server, calls, settings)

    async def open(self) -> None:
        """Listen for calls by SIP, where there is a port for them. Raises: ConfigError."""
        if self._server.config.sip.port:
            try:
                from voiceloop.doors.sip.door import SipDoor
            except ImportError as error:
                wanted = "sip.port: expected the package aiosipua (pip install 'voiceloop[sip]')"
                raise ConfigError(f"{wanted}, found none ({error})") from None
            self.sip = SipDoor(self._server, self._calls)
            await self.sip.open()
            self._close.append(self.sip.close)

    def close(self) -> None:
        """Give the ports back."""
        for close in self._close:
            close()

    def _open_carriers(self, server: Server, calls: Calls, settings: PhoneSettings) -> None:
        from voiceloop.doors.carriers.door import CarrierDoor
        from voiceloop.doors.carriers.plivo import Plivo
        from voiceloop.doors.carriers.telnyx import Telnyx
        from voiceloop.doors.carriers.twilio import SignalWire, Twilio
        from voiceloop.doors.carriers.vonage import Vonage

        kinds = {kind.name: kind for kind in (Twilio, SignalWire, Telnyx, Plivo, Vonage)}
        for name, secret in settings.carriers.items():
            door = CarrierDoor(server, calls, kinds[name](secret), settings.public_url)
            self.routes += door.routes()
            self.sockets.append(door)

    def _open_exchanges(self, server: Server, calls: Calls, settings: PhoneSettings) -> None:
        from voiceloop.doors.pbx.door import AsteriskDoor, AudioSocketDoor

        if "asterisk" in settings.secrets:
            door = AsteriskDoor(server, calls, settings.secrets["asterisk"])
            self.routes += door.routes()
            self.sockets.append(door)
        if "audiosocket" in settings.secrets:
            at = settings.audiosocket_address
            sockets = AudioSocketDoor(server, calls, settings.secrets["audiosocket"], *at)
            self.routes += sockets.routes()
            self._close.append(sockets.close)
