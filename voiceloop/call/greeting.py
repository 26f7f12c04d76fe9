"""Whether the agent speaks first in this call, and when.

Owns the one wait at the start of a call. A client that configures its session, or begins by itself,
meets what it would meet anywhere; one that only sends sound, or nothing, is greeted.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from voiceloop.realtime.commands import AppendAudio, Command, SettingsChanged


class Opening(Enum):
    """Who begins the call."""

    OPEN = "open"  # the client has said nothing yet
    AGENT = "agent"
    CLIENT = "client"


class GreetingWait:
    """Told of each command of the client's; the first one decides, or `wait_ms` without any.

    is_asked: the client's own word on it (``?greeting=``), None where it gave none. is_configured:
    its session came with settings, by a client secret.
    """

    def __init__(self, *, is_asked: bool | None, is_configured: bool, wait_ms: int) -> None:
        self._is_asked = is_asked
        self._wait_s = wait_ms / 1000
        self._decided = asyncio.Event()
        self.opening = Opening.OPEN
        if is_asked is False or (is_configured and not is_asked):
            self._decide(Opening.CLIENT)

    def observe(self, command: Command) -> None:
        """The client's next command; only the first one counts."""
        if self.opening is not Opening.OPEN:
            return
        match command:
            case AppendAudio():
                self._decide(Opening.AGENT)
            case SettingsChanged() if self._is_asked:
                self._decide(Opening.AGENT)  # in the voice and the form that it has just asked for
            case _:
                self._decide(Opening.CLIENT)

    async def agent_begins(self) -> bool:
        """Whether the agent speaks first, once that is known."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._decided.wait()
        except TimeoutError:
            self._decide(Opening.AGENT)
        return self.opening is Opening.AGENT

    def _decide(self, opening: Opening) -> None:
        self.opening = opening
        self._decided.set()
