"""How long a reply keeps its caller waiting: for the model, for its tools, and for its voice.

Owns the deadlines of the model's rounds, what is left of a reply's time for tools, how long a voice
may be silent that has words to say, and the line that is said meanwhile. It is one for all: a
caller who was asked to wait for the model is not asked again for a tool.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from voiceloop.agent import Waiting
from voiceloop.errors import BackendTimeout, WorkerLost

# Prompt to last token of one round. Chosen: the longest reply that an agent file allows by default
# (160 tokens) at 5 a second; speech takes some 4, so a slower model could not feed a voice.
GENERATE_DEADLINE_S = 30.0
# What the model and its caller have of the deadlines at the least, where deciding that the turn was
# over took long: a model that answers within it is no slow one.
LEAST_FIRST_S = 2.0
LEAST_QUIET_S = 0.5


class ModelDeadline:
    """For each round: `round` around it, `ask` when it is asked for, `observe` at what comes.

    The deadlines begin with `ask`: those of a reply made ahead with its release.

    first_s: for the first token. quiet_s: how long the caller may hear nothing, None for ever; then
    `on_quiet` is called, once a round. Of both counts what the caller has waited already.
    """

    def __init__(
        self,
        first_s: float,
        waited_s: Callable[[], float],
        quiet_s: Callable[[], float | None],
        on_quiet: Callable[[], None],
    ) -> None:
        self._first_s = min(first_s, GENERATE_DEADLINE_S)
        self._waited_s = waited_s
        self._quiet_s = quiet_s
        self._on_quiet = on_quiet
        self._due_s = 0.0  # of the deadline that runs, for who is told of it
        self._asked_at_s: float | None = None  # None: it has begun to answer, or nobody has asked
        self._timeout: asyncio.Timeout | None = None
        self._quiet: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def round(self) -> AsyncIterator[None]:
        """Raises: BackendTimeout, within."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                yield
        except TimeoutError:
            raise BackendTimeout(f"expected a reply in {self._due_s:.3g} s") from None
        finally:
            self._timeout = self._asked_at_s = None
            self._end_quiet()

    def ask(self) -> None:
        """The round is asked for now. Nothing where it is over already: it has failed."""
        if self._timeout is None:
            return
        loop = asyncio.get_running_loop()
        waited_s = self._waited_s()
        self._asked_at_s = loop.time()
        self._due_s = max(self._first_s - waited_s, min(self._first_s, LEAST_FIRST_S))
        self._timeout.reschedule(self._asked_at_s + self._due_s)
        if (quiet_s := self._quiet_s()) is not None:
            left_s = max(quiet_s - waited_s, min(quiet_s, LEAST_QUIET_S))
            self._quiet = loop.call_later(left_s, self._on_quiet)

    def observe(self) -> None:
        """Something of what was asked for has come."""
        asked_at_s, self._asked_at_s = self._asked_at_s, None
        if asked_at_s is None or self._timeout is None:
            return
        self._end_quiet()
        self._due_s = GENERATE_DEADLINE_S
        self._timeout.reschedule(asked_at_s + GENERATE_DEADLINE_S)

    @property
    def left_ms(self) -> float:
        """Of the deadline that runs, for who is to be told; 0 where none does."""
        due_s = self._timeout.when() if self._timeout is not None else None
        if due_s is None:
            return 0.0
        return max(1.0, 1000 * (due_s - asyncio.get_running_loop().time()))

    def _end_quiet(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None


class ReplyWait:
    """`begin` at each wait for tools, `end` after it. Pure: the clock is passed in.

    lines: to say, the next one first; of the session. has_spoken: one was said for it already.
    """

    def __init__(
        self,
        waiting: Waiting,
        lines: Iterator[str],
        clock: Callable[[], float],
        *,
        has_spoken: bool = False,
    ) -> None:
        self._waiting = waiting
        self._lines = lines
        self._clock = clock
        self._waited_s = 0.0
        self._began_s: float | None = None
        self.has_spoken = has_spoken

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> None:
        self._waited_s, self._began_s = self._present_s, None

    @property
    def _present_s(self) -> float:
        """Waited so far, in this wait and those before it."""
        under_way_s = self._clock() - self._began_s if self._began_s is not None else 0.0
        return self._waited_s + under_way_s

    @property
    def left_s(self) -> float:
        """What the reply may still wait for its tools."""
        return max(0.0, self._waiting.budget_ms / 1000 - self._present_s)

    @property
    def is_spent(self) -> bool:
        return self.left_s <= 0.0

    def quiet_s(self, play_end_s: float, own_due_s: float | None = None) -> float | None:
        """How long nothing needs to be said; None: never.

        play_end_s: when what was said before has sounded. own_due_s: in how long a tool's own line
        is due, if there is one.
        """
        if self.has_spoken or (own_due_s is None and not self._waiting.say):
            return None
        sounds_s = max(0.0, play_end_s - self._clock())
        if own_due_s is not None:
            return max(sounds_s, own_due_s)
        return sounds_s + self._waiting.say_after_ms / 1000

    def take_line(self, own_line: str = "") -> str | None:
        """What to say now; None where that has been said, or there is no time for it."""
        if self.has_spoken or self.is_spent or not (own_line or self._waiting.say):
            return None
        self.has_spoken = True
        return own_line or next(self._lines)


# From when there was no voice for a reply's words until a line takes their place, at the least:
# a second process (a cluster's, a spare) has opened a stream by then. Chosen.
LEAST_LOST_S = 0.5
# The same of a voice that is there, from the last text that it was given: a clause that takes it
# longer to begin is late for every caller. Chosen, some five times what the slowest voice of the
# presets takes on two cores.
LEAST_STALLED_S = 1.0
ROUNDING_S = 1e-6  # of sums of seconds: a wait that rounds to none would be waited for without end


@dataclass(frozen=True, slots=True)
class Silence:
    """Words wait for their sound. since_s: the caller hears nothing from then on. fed_at_s: when
    the voice was given the last of them. is_lost: there is no voice.
    """

    since_s: float
    fed_at_s: float
    is_lost: bool


class SilenceWatch:
    """Of one reply. `run` beside each of its rounds, and cancel it when all is said.

    quiet_s: how long the caller may hear nothing; None: for ever. silent_from_s: since when the
    caller waits at the latest. say_line: says one; False where there is none (any more).
    """

    def __init__(
        self,
        quiet_s: Callable[[], float | None],
        silent_from_s: Callable[[], float],
        say_line: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        self._quiet_s = quiet_s
        self._silent_from_s = silent_from_s
        self._say_line = say_line
        self._clock = clock
        self._may_have_line = True

    async def run(self, silence: Callable[[], Silence | None], changed: asyncio.Event) -> None:
        """silence: as it is now. changed: set where it may be another.

        Raises: WorkerLost where the voice is lost and there is no line to say.
        """
        while True:
            now = silence()
            left_s = self._left_s(now)
            if left_s is None or left_s > ROUNDING_S:
                changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await changed.wait()
            elif self._may_have_line:
                self._may_have_line = False
                if self._say_line():
                    return
            else:
                raise WorkerLost("expected a voice for the reply's words, found it lost")

    def _left_s(self, silence: Silence | None) -> float | None:
        if silence is None or (quiet_s := self._quiet_s()) is None:
            return None
        if not (silence.is_lost or self._may_have_line):
            return None  # it may still speak, or be lost
        due_s = max(silence.since_s, self._silent_from_s()) + quiet_s
        least_s = LEAST_LOST_S if silence.is_lost else LEAST_STALLED_S
        return max(due_s, silence.fed_at_s + least_s) - self._clock()
