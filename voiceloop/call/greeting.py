"""Whether the agent speaks first in this call, and when.

Owns the one wait at the start of a call. A client that configures its session, or begins by itself,
meets what it would meet anywhere; one that only sends sound, or nothing, is greeted.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from voiceloop.call.connection import Hello
from voiceloop.realtime.commands import AppendAudio, Command, ResumeCall, SettingsChanged

# Who comes back shows a ticket first, over a line that has just broken.
RETURN_WAIT_S = 5.0


class Opening(Enum):
    """Who begins the call."""

    OPEN = "open"  # the client has said nothing yet
    AGENT = "agent"
    CLIENT = "client"


# A client that begins by itself does so within this; the slow ones are SDKs on a busy machine.
WAIT_S = 1.0


class GreetingWait:
    """Told of each command of the client's; the first one decides, or `WAIT_S` without any."""

    def __init__(self, hello: Hello) -> None:
        self._is_asked = hello.greeting
        self._sound_flows = hello.door != "websocket"
        self._wait_s = RETURN_WAIT_S if hello.is_returning else WAIT_S
        self._decided = asyncio.Event()
        self.opening = Opening.OPEN
        if hello.greeting is False or (hello.is_configured and not hello.greeting):
            self._decide(Opening.CLIENT)

    def observe(self, command: Command) -> None:
        """The client's next command; only the first one counts."""
        if self.opening is not Opening.OPEN:
            return
        match command:
            case AppendAudio() if self._sound_flows:
                pass  # before the client has asked for anything
            case AppendAudio():
                self._decide(Opening.AGENT)
            case SettingsChanged() if self._is_asked:
                self._decide(Opening.AGENT)  # in the voice and the form that it has just asked for
            case ResumeCall() if self._is_asked:
                pass  # the settings that come of it decide, or the next command where it is refused
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
