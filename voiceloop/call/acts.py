"""Acts that a reply asks of the call, done once the caller has heard the reply.

Owns the hanging up after a goodbye, with the caller's chance to speak against it; the keys that are
pressed for the agent; and a transfer from the first ring, which the caller hears, to its end, or
back to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import cycle

import numpy as np

from audio.frames import FRAME_MS, Samples, samples_in
from voiceloop.agent import AgentConfig
from voiceloop.call import events as told
from voiceloop.call.answered_by import AnsweredBy, Tone
from voiceloop.call.connection import Transport
from voiceloop.call.lifetime import Ending, Idleness
from voiceloop.call_manners import CallManners, Transfer
from voiceloop.errors import NotOnThisLine, TransferFailed, VoiceLoopError
from voiceloop.listening.events import ListenEvent
from voiceloop.realtime.commands import ClearAudio
from voiceloop.realtime.protocol import Protocol
from voiceloop.realtime.sound_line import LINE_FORMAT
from voiceloop.telemetry.tap import CallTap, Sounded
from voiceloop.telephony import NO_PHONE, Announcement, PhoneLine
from voiceloop.tools.call_tools import Act, CallAct, with_call_tools

log = logging.getLogger(__name__)

# After the last sample of a goodbye: what a client still holds is played, and who wants something
# more says so. Chosen: people hang up no sooner.
GOODBYE_HEARD_S = 0.6
# The line of a caller who was handed over ends by itself; chosen, for a far end that forgets to.
HANDED_OVER_S = 5.0
AFTER_TONE_S = 0.4
SILENCE_S = 10.0  # of a caller, before they are asked whether they are there; chosen
LONGEST_GREETING_S = 60.0  # of a machine, and of what is said to it
# Of the longest, by SIP: a minute of ringing, one of summary, and two for the caller's telephone,
# which takes our place with the colleague, or calls them anew where it cannot.
MAX_TRANSFER_S = 240.0
# What a caller hears while it rings elsewhere: 425 Hz, a second in five, as in most of the world
# (ITU-T E.180). At -17 dBFS it is no louder than the agent.
RING_HZ, RING_S, RING_EVERY_S, RING_AMPLITUDE = 425.0, 1.0, 5.0, 0.14
RING_AHEAD_S = 0.04  # so far it is sent ahead, as the agent's sound over RTP: a timer may be late

EndCall = Callable[[Ending], None]
HandOn = Callable[[Transfer, str], bool]  # to another agent, with a summary; whether it goes on


class CallActs:
    """The acts that replies ask of one call.

    advance: has turn-taking act on events. end: ends the call. phone: the far end, where that is a
    telephone. spoken: a text as the agent says it. hand_on: has another agent go on. tap: told of
    sound that no reply makes.
    """

    def __init__(
        self,
        agent: AgentConfig,
        protocol: Protocol,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float],
        advance: Callable[[Sequence[told.CallEvent]], None],
        end: EndCall,
        hand_on: HandOn,
        spoken: Callable[[str], Awaitable[bytes]],
        phone: PhoneLine | None,
        tap: CallTap,
    ) -> None:
        self.idleness = Idleness(lambda since_ms: advance([told.CallerIdle(since_ms)]), clock)
        # The caller is handed over and hears somebody else, or is a machine: nothing is answered.
        self.is_away = False
        self._tone: Tone | None = None  # that is waited for
        self._may_begin = asyncio.Event()
        self.answered = AnsweredBy() if agent.call.machine != "ignore" else None
        self._manners = agent.call
        self._protocol = protocol
        self._advance = advance
        self._tasks = tasks
        self._end = end
        self._hand_on = hand_on
        self._spoken = spoken
        self._phone = phone
        self._tap, self._clock = tap, clock

    def take(self, manners: CallManners) -> None:
        """Another agent goes on with the call."""
        self._manners = manners

    # --- who is there ---

    def leaves_out(self, heard: bytes | told.CallEvent, now_ms: float) -> bool:
        """Whether this sound, or what was heard in it, is of a caller who is away. It tells who has
        answered a call of ours, too.
        """
        if not isinstance(heard, bytes | ListenEvent):
            return False
        if self.is_away:
            if isinstance(heard, bytes) and self._tone is not None and self._tone.hear(heard):
                self._may_begin.set()
            return True
        if self.answered is None:
            return False
        if isinstance(heard, bytes):
            by = self.answered.hear(heard)
        else:
            by = self.answered.observe(heard, now_ms)
        if by is not None:
            self._protocol.answered_by(by, now_ms)
        if by == "machine":
            self._meet_machine()
        return self.is_away

    def _meet_machine(self) -> None:
        """Say nothing more to it but the message, where there is one."""
        if self._manners.machine in ("ignore", "tell") or self.is_away:
            return
        self._advance((*self._protocol.cancel_active(), ClearAudio()))
        self.is_away = True
        if self._manners.machine == "hang_up":
            self._end(Ending.MACHINE)
        else:
            self._tone = Tone()
            self._tasks.create_task(self._leave_message(self._manners.message), name="message")

    def _say(self, line: str) -> None:
        self._advance([told.GreetingDue(line)])

    # --- done ---

    async def _leave_message(self, message: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_GREETING_S):
                await self._may_begin.wait()
        await asyncio.sleep(AFTER_TONE_S)
        self._say(message)
        with suppress(TimeoutError):
            async with asyncio.timeout(LONGEST_GREETING_S):
                await self.idleness.wait()
        self._end(Ending.MACHINE)

    def begin(self, act: CallAct) -> None:
        """Do this now; what takes time goes on by itself."""
        match act.act:
            case Act.END:
                self._tasks.create_task(self._hang_up(), name="hang up")
            case Act.VOICEMAIL:
                self._meet_machine()
            case Act.DIGITS if self._phone is not None:
                self._tasks.create_task(self._press(self._phone, act.digits), name="press keys")
            case Act.TRANSFER if act.to is not None and act.to.agent:
                if not self._hand_on(act.to, act.summary):
                    self._say(act.failed)
            case Act.TRANSFER if self._phone is not None:
                self._tasks.create_task(self._transfer(self._phone, act), name="transfer")

    async def _hang_up(self) -> None:
        if await self.idleness.stays_idle(GOODBYE_HEARD_S):
            self._end(Ending.AGENT)

    async def watch_silence(self, n_turns: Callable[[], int], waits: Callable[[], bool]) -> None:
        """Ask whether anybody is there after SILENCE_S, and end the call after two more of it.

        n_turns: the agent's so far. waits: whether the caller has asked it to wait, and is asked
        back by turn-taking first.
        """
        n_asked: int | None = None  # turns of the agent, the question among them
        while True:
            await self.idleness.wait()
            is_asked = n_asked is not None and n_turns() <= n_asked
            n_silences = 2 if is_asked else 1
            is_quiet = await self.idleness.stays_idle(n_silences * SILENCE_S)
            asks = bool(self._manners.still_there) and not waits()
            if not is_quiet or self.is_away or not asks:
                n_asked = None if not self.is_away else n_asked
                await asyncio.sleep(1.0 if self.is_away else 0.0)
                continue
            if is_asked:
                break
            n_asked = n_turns() + 1
            self._say(self._manners.still_there)
        self._say(self._manners.goodbye)
        await self.idleness.wait()
        self._end(Ending.NOBODY_SPEAKS)

    async def _press(self, phone: PhoneLine, digits: str) -> None:
        try:
            await phone.send_digits(digits)
        except VoiceLoopError as error:
            log.warning("keys were not pressed (%s): %s", error.wire_code, error.message)

    async def _transfer(self, phone: PhoneLine, act: CallAct) -> None:
        """Hand the caller over; who is not taken comes back with a sentence."""
        to = act.to
        assert to is not None  # as `CallTool.act` makes it
        self.is_away = True
        ringing = self._tasks.create_task(self._ring(), name="ring tone")
        try:
            announcement = await self._announcement(act) if to.warm else None
            async with asyncio.timeout(MAX_TRANSFER_S):
                try:
                    await phone.transfer(to.to, announcement)
                except NotOnThisLine:
                    if announcement is None:
                        raise
                    log.warning("a transfer to %s goes without its summary", to.name)
                    await phone.transfer(to.to)
        except (TransferFailed, NotOnThisLine, TimeoutError) as error:
            log.warning("a transfer to %s failed: %s", to.name, error or "nobody answered")
            self.is_away = False
            self._say(act.failed)
            return
        finally:
            ringing.cancel()
        await asyncio.sleep(HANDED_OVER_S)
        self._end(Ending.HANDED_OVER)

    async def _ring(self) -> None:
        """Have the caller hear that it rings elsewhere, until this is cancelled."""
        tone, loop = ring_tone(), asyncio.get_running_loop()
        n_frame, due_s = samples_in(FRAME_MS, LINE_FORMAT.rate), loop.time() - RING_AHEAD_S
        for start in cycle(range(0, len(tone), n_frame)):
            due_s += FRAME_MS / 1000.0
            await asyncio.sleep(due_s - loop.time())
            if (line := self._protocol.line) is not None:
                piece = tone[start : start + n_frame]
                line.send_sound(piece.tobytes())
                if self._tap.keeps:
                    play_end_s = self._clock() + FRAME_MS / 1000.0
                    self._tap.say(Sounded(piece, LINE_FORMAT.rate, play_end_s, "", ()))

    async def _announcement(self, act: CallAct) -> Announcement | None:
        """Return what is said to who takes the call; None where there is nothing, or no voice for
        it.
        """
        if not act.summary:
            return None
        try:
            return Announcement(act.summary, await self._spoken(act.summary))
        except (VoiceLoopError, TimeoutError) as error:
            log.warning("a transfer goes without its summary: %s", error or "no voice in time")
            return None


@cache
def ring_tone() -> Samples:
    """One period of it, of LINE_FORMAT, from its beginning."""
    rate_hz = LINE_FORMAT.rate
    wave = np.sin(2.0 * np.pi * RING_HZ * np.arange(int(RING_S * rate_hz)) / rate_hz)
    tone = np.zeros(int(RING_EVERY_S * rate_hz), np.int16)
    tone[: len(wave)] = 32767.0 * RING_AMPLITUDE * wave
    return tone


def agent_on_line(
    agent: AgentConfig,
    transport: Transport,
    allows: Callable[[Transfer], bool],
    *,
    begins: bool = True,
) -> AgentConfig:
    """The agent with its texts filled in for this caller, and the tools of this line.

    allows: whether a call may go there. begins: the call does, with this agent.
    """
    hello, manners = transport.hello, agent.call
    call, greeting = hello.phone or NO_PHONE, agent.greeting
    if begins and call.returned:
        greeting = manners.not_transferred
    if not call.is_outbound:  # there people call us, and machines do not answer
        manners = replace(manners, machine="ignore", screening="")
    instructions, greeting = call.filled(agent.instructions), call.filled(greeting)
    agent = replace(agent, instructions=instructions, greeting=greeting, call=manners)
    if transport.phone is None:
        transfers = tuple(one for one in agent.transfers if one.agent)
        agent = replace(agent, transfers=transfers)
    has_phone = transport.phone is not None
    can = frozenset(Act) if has_phone else frozenset({Act.END, Act.TRANSFER})
    return with_call_tools(agent, can, allows)
