"""The beginning, the pauses and the end of a call.

Owns the wait in which it is decided who speaks first, the moments in which nobody speaks and
nothing is owed (for who waits for one, or prompts a silent caller, and for the place that a call
takes), and the wait for whichever end comes first, with what its close frame says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

from voiceloop.call.connection import Hello
from voiceloop.errors import (
    Overloaded,
    RateLimited,
    SessionExpired,
    Unauthorized,
    VoiceLoopError,
)
from voiceloop.realtime.commands import AppendAudio, Command, ResumeCall, SettingsChanged

# Who comes back shows a ticket by then, mostly first, over a line that has just broken.
RETURN_WAIT_S = 5.0
# A client that begins by itself does so within this; the slow ones are SDKs on a busy machine.
WAIT_S = 1.0
# A call in which nobody has spoken for so long, or one whose client has sent nothing by then, costs
# next to nothing. It has a tenth of a place all the same: anybody can hold many such lines.
QUIET_CALL_S = 30.0
BEGINS_WITHIN_S = 1.0
SILENT_SHARE = 0.1
EXPIRY_WARNING_S = 60.0


class Opening(Enum):
    """The party that begins the call."""

    OPEN = "open"  # the client has said nothing yet
    AGENT = "agent"
    CLIENT = "client"


class GreetingWait:
    """Whether the agent speaks first. A client that configures its session, or begins by itself,
    meets what it would meet anywhere; one that only sends sound, or nothing, is greeted.

    Told of each command of the client's; the first one decides, or `WAIT_S` without any.
    """

    def __init__(self, hello: Hello) -> None:
        self._is_asked = hello.greeting
        # Before a client has asked for anything: a microphone does not wait for the session.
        self._sound_flows = hello.door != "websocket" or hello.is_returning
        self._wait_s = RETURN_WAIT_S if hello.is_returning else WAIT_S
        self._decided = asyncio.Event()
        self.opening = Opening.OPEN
        if hello.greeting is False or (hello.is_configured and not hello.greeting):
            self._decide(Opening.CLIENT)
        elif hello.phone is not None and not hello.is_returning:
            self._decide(Opening.AGENT)  # no client asks for anything first

    def observe(self, command: Command) -> None:
        """The client's next command, while none has decided."""
        match command:
            case AppendAudio() if self._sound_flows:
                pass
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


class Idleness:
    """Told of every change by turn-taking; `on_timeout(since_ms)` after `timeout_ms` of it."""

    def __init__(self, on_timeout: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._on_timeout = on_timeout
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._idle, self._busy = asyncio.Event(), asyncio.Event()
        self._idle.set()  # a call begins in silence, and may have no greeting
        self._quiet_since_s: float | None = clock()
        self._begins_by_s = clock() + BEGINS_WITHIN_S
        self.has_begun = False

    @property
    def place_share(self) -> float:
        """Return what the call takes of a place: all of it, or `SILENT_SHARE`."""
        now_s, since_s = self._clock(), self._quiet_since_s
        if not self.has_begun:
            return 1.0 if now_s < self._begins_by_s else SILENT_SHARE
        return SILENT_SHARE if since_s is not None and now_s - since_s >= QUIET_CALL_S else 1.0

    @property
    def is_silent(self) -> bool:
        """Whether the client has said nothing yet, for so long that the call has no place."""
        return not self.has_begun and self.place_share < 1.0

    def begin(self) -> None:
        """The client says something: the call takes its place."""
        self.has_begun = True
        if self._quiet_since_s is not None:
            self._quiet_since_s = self._clock()

    def observe(self, is_idle: bool, *, timeout_ms: int | None, now_ms: float) -> None:
        """The call changed; idle time counts from here, on the session's audio clock too."""
        self.stop()
        if not is_idle:
            self._idle.clear()
            self._busy.set()
            self._quiet_since_s = None
            return
        if self._quiet_since_s is None:
            self._quiet_since_s = self._clock()
        self._busy.clear()
        self._idle.set()
        if timeout_ms is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(timeout_ms / 1000, self._on_timeout, now_ms)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def wait(self) -> None:
        await self._idle.wait()

    async def stays_idle(self, for_s: float) -> bool:
        """Wait so long, or until somebody speaks; whether nobody has. From an idle moment on."""
        try:
            async with asyncio.timeout(for_s):
                await self._busy.wait()
        except TimeoutError:
            return True
        return False


class SessionOver(Exception):
    """Ends the session's task group; carries what the close frame says."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason

    @classmethod
    def of(cls, group: BaseExceptionGroup[SessionOver]) -> SessionOver:
        """The first of those that a task group has ended by."""
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, SessionOver)
        return error


class Ending(Enum):
    """A reason to end a session, and the text of its close frame."""

    EXPIRED = 1001, "session expired"
    DRAINED = 1012, "the server restarts"
    RESUMED = 1000, "the call goes on over another connection"
    OVERLOADED = 1013, "the server has no place for a call that says nothing"
    REVOKED = 1008, "the key of the call was removed"
    AGENT = 1000, "the agent ended the call"
    NOBODY_SPEAKS = 1000, "nobody spoke any more"
    MACHINE = 1000, "a machine has answered"
    HANDED_OVER = 1000, "the caller was handed over"
    LAPSED = 1008, "no call was resumed on a line that was kept for one"

    @property
    def lets_turn_end(self) -> bool:
        """Whether what is being said is said to its end."""
        return self is Ending.DRAINED


class Lifetime:
    """One session's time. whole_s: its longest; notify: tells the client how many seconds are left.

    drain_s: how long a turn under way may take once the server shuts down.
    """

    def __init__(self, whole_s: float, drain_s: float, notify: Callable[[int], None]) -> None:
        self.whole_s = whole_s
        self.drain_s = drain_s
        self._notify = notify
        self._earlier_s = 0.0
        self._begun_s: float | None = None
        self._let_go: Ending | None = None
        self._changed = asyncio.Event()

    def drain(self, why: Ending = Ending.DRAINED) -> None:
        """The server shuts down: the turn under way is the last."""
        if self._let_go is None or why is Ending.REVOKED:
            self._let_go = why
            self._changed.set()
            if why.lets_turn_end:
                self._notify(round(self.drain_s))

    @property
    def is_ending(self) -> bool:
        return self._let_go is not None

    @property
    def lived_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        return self._earlier_s + (now_s - self._begun_s if self._begun_s is not None else 0.0)

    def resume(self, earlier_s: float) -> None:
        """The call has lasted so long before this connection: that counts too."""
        self._earlier_s = earlier_s
        self._changed.set()

    def error_of(self, ending: Ending) -> VoiceLoopError | None:
        """Return what the client is told before the line closes; None where it need not be."""
        match ending:
            case Ending.EXPIRED:
                return SessionExpired(
                    f"The call has reached its limit of {self.whole_s / 60.0:g} minutes."
                )
            case Ending.OVERLOADED:
                return Overloaded("This call was silent, and another caller needed its place.")
            case Ending.REVOKED:
                return Unauthorized("The API key of this call was removed.")
            case Ending.LAPSED:
                text = f"voiceloop.resume did not come within {RETURN_WAIT_S:g} s."
                return RateLimited(text, code="quota_exceeded")
        return None

    async def end(self) -> Ending:
        """Wait for the end; a minute before the longest time is over the client is told."""
        self._begun_s = asyncio.get_running_loop().time()
        warning_s = min(EXPIRY_WARNING_S, self.whole_s / 2)
        for left_s in (warning_s, 0.0):
            if (let_go := await self._until_left(left_s)) is not None:
                return let_go
            if left_s:
                self._notify(round(left_s))
        return Ending.EXPIRED

    async def _until_left(self, left_s: float) -> Ending | None:
        """Wait until only so much is left of the longest time, or for the server to let it go."""
        while self._let_go is None and (wait_s := self.whole_s - left_s - self.lived_s) > 0.0:
            self._changed.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self._let_go
