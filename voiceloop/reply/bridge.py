"""The line that a caller hears while something of a reply is late; then the reply goes on.

Owns when that line is due, by one rule for the model, the tools and the voice; that a reply has at
most one; and how long a reply may wait for its model, and for its tools in all. Where the caller's
own words are late there is no reply yet: `WordsLate` in `call/turn_taking.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from voiceloop.agent import Waiting
from voiceloop.errors import BackendTimeout, WorkerLost
from voiceloop.reply.opener import Opener
from voiceloop.reply.plan import GENERATE_DEADLINE_S
from voiceloop.tools.pending import PendingCall, are_settled, own_line_of

# What each has at the least, from when it was asked, however long its caller has waited. A model
# that answers within it is no slow one. Chosen.
LEAST_MODEL_S = 0.5
# Where there is no voice: a second process (a cluster's, a spare) has opened a stream by then.
# Chosen.
LEAST_LOST_S = 0.5
# Of a voice that is there: a clause that takes it longer to begin is late for every caller. Chosen,
# some five times what the slowest voice of the presets takes on two cores.
LEAST_STALLED_S = 1.0
# What the model has of its first deadline at the least, where deciding that the turn was over took
# long: a model that answers within it is no slow one.
LEAST_FIRST_S = 2.0
ROUNDING_S = 1e-6  # of sums of seconds: a wait that rounds to none would be waited for without end


@dataclass(frozen=True, slots=True)
class Late:
    """The part of a reply that the caller waits for. since_s: nothing is heard from then on.
    asked_s: when the model was asked, or the voice was given its words; least_s: what it has from
    then on.

    is_voice: so the line must not need one. is_lost: there is no voice. may_open: an opener is said
    for it, asked_s and least_s alone counting.
    """

    since_s: float
    asked_s: float
    least_s: float
    is_voice: bool = False
    is_lost: bool = False
    may_open: bool = False


class Bridge:
    """The bridge of one reply. lines: to say, the next one first; of the session. clock: the event
    loop's.

    has_spoken: the caller was asked to wait already, or reads. opener: of a reply that may have one
    (`opener.py`): it is its one line.
    """

    def __init__(
        self,
        waiting: Waiting,
        lines: Iterator[str],
        clock: Callable[[], float],
        *,
        has_spoken: bool = False,
    ) -> None:
        self._lines = lines
        self._has_lines = bool(waiting.say)
        self._say_after_s = waiting.say_after_s
        self._clock = clock
        self._has_spoken = has_spoken
        self.opener: Opener | None = None
        self._left_s = waiting.tools_s
        self._may_bridge_voice = True  # once a reply

    @property
    def is_spent(self) -> bool:
        """Whether the reply has waited long enough for all its tools."""
        return self._left_s <= ROUNDING_S

    def _has_line(self, own_line: str = "") -> bool:
        is_there = bool(own_line) or self._has_lines
        return is_there and not self._has_spoken and not self.is_spent

    def _take_line(self, own_line: str = "") -> str:
        self._has_spoken = True
        return own_line or next(self._lines)

    def take_opener(self) -> str:
        """The opener, which is said now."""
        assert self.opener is not None
        self._has_spoken = True
        return self.opener.line

    @property
    def owes_opener(self) -> bool:
        """Whether an opener may be said, and was not yet."""
        return self.opener is not None and not self._has_spoken

    def late_model(self, since_s: float, asked_s: float, play_end_s: float) -> Late:
        """The model has said nothing. play_end_s: when what was said before has sounded."""
        if self.opener is not None and not self._has_spoken:
            return Late(since_s, asked_s, self.opener.after_s, may_open=True)
        sounds_s = max(0.0, play_end_s - asked_s)
        least_s = min(LEAST_MODEL_S, sounds_s + self._say_after_s)
        return Late(since_s + sounds_s, asked_s, least_s)

    async def watch(
        self,
        late: Callable[[], Late | None],
        changed: asyncio.Event,
        say: Callable[[str, bool], bool],
    ) -> None:
        """Watch a round: say a line where what is late at the moment has been so for too long.

        changed: set where it may be another thing. say: `say(line, needs_voice)` puts it before
        what is late; False where it may not need a voice, and was never spoken before.
        Raises: WorkerLost where the voice is lost and there is no line to say.
        """
        while True:
            now = late()
            left_s = self._left_s_to(now) if now is not None else None
            if now is None or left_s is None or left_s > ROUNDING_S:
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await changed.wait()
            elif not now.is_voice:
                say(self.take_opener() if now.may_open else self._take_line(), True)
            elif self._may_bridge_voice:
                self._may_bridge_voice = False
                if self._has_spoken or (self._has_line() and say(self._take_line(), False)):
                    return
            else:
                raise WorkerLost("The voice was lost before the end of the reply.")

    def _left_s_to(self, late: Late) -> float | None:
        """Return the time until a line is due; None where none will be."""
        if late.may_open:
            return late.asked_s + late.least_s - self._clock()
        if late.is_voice:
            is_due = late.is_lost or self._may_bridge_voice  # else it may still speak, or be lost
        else:
            is_due = self._has_line()
        due_s = max(late.since_s + self._say_after_s, late.asked_s + late.least_s)
        return due_s - self._clock() if is_due else None

    async def over(
        self, calls: Sequence[PendingCall], play_end_s: float, say: Callable[[str], Awaitable[None]]
    ) -> None:
        """Wait until these calls are over, or the reply has waited long enough for all its tools.

        play_end_s: as of `late_model`. say: says a line behind what was said before.
        """
        began_s = self._clock()
        ends_s = began_s + self._left_s
        own_line, own_due_s = own_line_of(calls)
        if self._has_line(own_line):
            sounds_s = max(0.0, play_end_s - began_s)
            quiet_s = sounds_s + self._say_after_s
            if own_due_s is not None:
                quiet_s = max(sounds_s, own_due_s)
            if not await are_settled(calls, min(self._left_s, quiet_s)) and quiet_s < self._left_s:
                await say(self._take_line(own_line))
        await are_settled(calls, max(0.0, ends_s - self._clock()))
        self._left_s = max(0.0, ends_s - self._clock())


class ModelDeadline:
    """The deadline of the model, for each round: `round` around it, `ask` when it is asked for,
    `observe` at what comes.

    The deadlines begin with `ask`: those of a reply made ahead with its release. first_s: for the
    first token. waited_s: how much of that the caller has waited already. speaks: the text comes
    no sooner than its sound, so the deadline is that of the next piece.
    """

    def __init__(
        self, first_s: float, waited_s: Callable[[], float], *, speaks: bool = False
    ) -> None:
        self._first_s = min(first_s, GENERATE_DEADLINE_S)
        self._waited_s = waited_s
        self._speaks = speaks
        self._due_s = 0.0  # of the deadline that runs, for who is told of it
        self._timeout: asyncio.Timeout | None = None
        self.asked_s: float | None = None  # None: it has begun to answer, or nobody has asked

    @asynccontextmanager
    async def round(self) -> AsyncIterator[None]:
        """Raises: BackendTimeout, within."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                yield
        except TimeoutError:
            raise BackendTimeout(
                f"The language model did not answer within {self._due_s:.3g} s."
            ) from None
        finally:
            self._timeout = self.asked_s = None

    def ask(self) -> None:
        """The round is asked for now. Nothing where it is over already: it has failed."""
        if self._timeout is None:
            return
        self.asked_s = asyncio.get_running_loop().time()
        self._due_s = max(self._first_s - self._waited_s(), min(self._first_s, LEAST_FIRST_S))
        self._timeout.reschedule(self.asked_s + self._due_s)

    def observe(self) -> None:
        """Something of what was asked for has come."""
        asked_s, self.asked_s = self.asked_s, None
        if self._speaks:
            asked_s = asyncio.get_running_loop().time()
        if asked_s is not None and self._timeout is not None:
            self._due_s = GENERATE_DEADLINE_S
            self._timeout.reschedule(asked_s + GENERATE_DEADLINE_S)

    @property
    def left_ms(self) -> float:
        """Return the rest of the deadline that runs, for who is to be told; 0 where none does."""
        due_s = self._timeout.when() if self._timeout is not None else None
        if due_s is None:
            return 0.0
        return max(1.0, 1000 * (due_s - asyncio.get_running_loop().time()))
