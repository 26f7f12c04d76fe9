"""A session that goes on over another line where its own breaks.

A server that gives tickets (VoiceLoop) is dialled again, and told which call it was; for whoever
uses the connection nothing ends. With any other server it is an ordinary connection.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Self

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from clients.connection import RealtimeConnection, Received, dial, realtime_url
from clients.errors import ConnectionFailed

# Close codes after which another line can help: cut, the server's bug, restart. Not after a call
# that was ended (1000), was at its longest (1001), did wrong (1008, 1009) or was sent away (1013).
BROKEN = (1005, 1006, 1011, 1012)
RESUMABLE_S = 60.0  # as long as a ticket is good
WAITS_S = (0.2, 0.5, 1.0, 2.0, 4.0)  # the last again and again; each is varied by a quarter


class ResumingConnection(RealtimeConnection):
    """As `RealtimeConnection`; what is sent while the line is down is lost, as on a telephone."""

    def __init__(
        self, socket: ClientConnection, url: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(socket, url, clock)
        self.n_resumed = 0
        self._url, self._extras, self._key = url, dict[str, str](), ""
        self._ticket: dict[str, Any] = {}
        self._is_broken = False
        self._is_resuming = False  # the ticket was shown, and nothing has come of it yet
        self._is_closed = False  # by us: there is nothing to go on with

    @classmethod
    async def open(
        cls, url: str, *, key: str | None = None, extras: dict[str, str] | None = None
    ) -> Self:
        asked = {**(extras or {}), "voiceloop.resume": "1"}
        address = realtime_url(url, asked)
        made = cls(await dial(address, key), address)
        made._url, made._extras, made._key = url, asked, key or ""
        return made

    async def send(self, event: dict[str, Any]) -> None:
        if self._is_broken:
            return
        try:
            await super().send(event)
        except ConnectionFailed:
            if not self._may_resume():
                raise

    async def close(self) -> None:
        """Hang up, also where the line is down and being dialled again."""
        self._is_closed = True
        await super().close()

    async def events(self) -> AsyncIterator[Received]:
        """Server events, over one line after the other.

        Raises:
            ConnectionFailed: as `RealtimeConnection.events`, or another server does not go on with
                the call. The new one that it has begun instead knows nothing of what was said.
        """
        while True:
            async for received in super().events():
                match received.type:
                    case "voiceloop.resume_ticket":
                        self._ticket = received.event
                    case "voiceloop.resumed":
                        self._is_resuming = False
                        self.n_resumed += 1
                    case "error" if self._is_resuming:
                        self._ticket = {}
                        await self.close()
                        why = received.event["error"].get("message", "an error")
                        raise ConnectionFailed(f"The call could not go on over another line: {why}")
                yield received
            if not self._may_resume() or not await self._resume():
                return

    def _may_resume(self) -> bool:
        return bool(self._ticket) and (self._socket.close_code or 1006) in BROKEN

    async def _resume(self) -> bool:
        """Dial until somebody answers, for as long as the ticket is good."""
        self._is_broken = True
        ticket, broke_at = self._ticket["ticket"], self._clock()
        returns = {"voiceloop.returns": str(self._ticket["returns"])}
        address = realtime_url(self._url, self._extras | returns)
        tried = 0
        while not self._is_closed and self._clock() - broke_at < RESUMABLE_S:
            await asyncio.sleep(WAITS_S[min(tried, len(WAITS_S) - 1)] * random.uniform(0.75, 1.25))
            tried += 1
            try:
                self._socket = await dial(address, self._key)
                if self._is_closed:  # meanwhile
                    await super().close()
                    break
                await super().send({"type": "voiceloop.resume", "ticket": ticket})
            except (ConnectionFailed, ConnectionClosed) as error:
                self.ended_by = str(error)
                continue
            self._is_broken, self._is_resuming = False, True
            return True
        self._ticket = {}
        return False
