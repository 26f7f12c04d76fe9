"""The opener: what the small model of a cascade says while the large one is late, an act that
commits to nothing.

Owns which lines those are, how seldom one is said, and the choice among them, which is the small
model's under a grammar that has no other words. `Bridge` says when one is due, and the large model
goes on behind it.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from statistics import median

from voiceloop.backends import ChatMessage, GenerateParams, PreemptiveDelta, PreemptiveDone
from voiceloop.errors import VoiceLoopError
from voiceloop.openers import SLOT, words_of
from voiceloop.reply.anticipation import LiveBranch

# Behind the release: a large model that begins by then needs none. One that never does is not
# waited for.
OPENER_AFTER_S = 0.1
# Of turns that the large model answers where it is not always late: one in so many, and the same
# words in as many openers.
ONE_IN = 5
# The last waits for the large model, of all calls: it is always late where nearly all were.
N_WAITS, LEAST_WAITS, ALWAYS = 20, 3, 0.9
COVER_MS = 150.0  # from a first token to its sound: a clause is written and synthesized
CHOICE_TOKENS = 32


class Waits:
    """The waits for the first word of the large model, of all calls of a server, in ms.

    released_ms: behind the release of the reply, so that what was made ahead counts. ttft_ms:
    behind the request itself.
    """

    def __init__(self) -> None:
        self._released: deque[float] = deque(maxlen=N_WAITS)
        self._ttft: deque[float] = deque(maxlen=N_WAITS)

    def observe(self, released_ms: float, ttft_ms: float) -> None:
        """Take in one reply; ttft_ms 0: not known."""
        self._released.append(released_ms)
        if ttft_ms > 0.0:
            self._ttft.append(ttft_ms)

    @property
    def are_always_long(self) -> bool:
        """Whether the large model nearly always is later than an opener."""
        n_late = sum(wait_ms > 1000 * OPENER_AFTER_S for wait_ms in self._released)
        return len(self._released) >= LEAST_WAITS and n_late >= ALWAYS * len(self._released)

    @property
    def ttft_ms(self) -> float | None:
        """Return what a request takes, as far as is known."""
        return median(self._ttft) if self._ttft else None


class Opener:
    """The opener of one turn: the line that is said if the large model is late. after_s: behind the
    release. n_tokens: of the choice.
    """

    def __init__(self, lines: Sequence[str], after_s: float) -> None:
        self.after_s = after_s
        self.line = lines[0]  # until the small model has chosen, and where it does not
        self.n_tokens = 0
        self._lines = tuple(lines)
        self._choosing: asyncio.Task[None] | None = None

    def choose(
        self, small: LiveBranch, tail: tuple[ChatMessage, ...], tasks: asyncio.TaskGroup
    ) -> None:
        """Have the small model choose: its reply to the turn may be one of these lines alone."""
        schema = json.dumps({"type": "string", "enum": list(self._lines)}, ensure_ascii=False)
        params = GenerateParams(max_tokens=CHOICE_TOKENS, json_schema=schema)
        if len(self._lines) > 1 and small.begin_preemptive(tail, params):
            self._choosing = tasks.create_task(self._read(small), name="opener")

    async def _read(self, small: LiveBranch) -> None:
        text, attempt = "", small.newest_attempt
        with suppress(VoiceLoopError):  # the first of the lines does
            async for event in small.events():
                match event:
                    case PreemptiveDelta(attempt=made, text=more) if made == attempt:
                        text += more
                        self.n_tokens += 1
                    case PreemptiveDone(attempt=made) if made == attempt:
                        break
        with suppress(ValueError):
            if (chosen := json.loads(text)) in self._lines:
                self.line = chosen

    def close(self) -> None:
        """Choose no more; idempotent."""
        if self._choosing is not None:
            self._choosing.cancel()


class Openers:
    """The openers of one call.

    lines: as of `openers_of`. sound_ms: how long one sounds that is kept as sound; 0: it is not.
    waiting: lines that ask to wait, which a model may begin with.
    """

    def __init__(
        self,
        lines: Sequence[str],
        waits: Waits,
        tasks: asyncio.TaskGroup,
        sound_ms: Callable[[str], float],
        waiting: Sequence[str] = (),
    ) -> None:
        self._waiting = waiting
        self._lines = tuple(lines)
        self._waits = waits
        self._tasks = tasks
        self._sound_ms = sound_ms
        self._said: deque[str] = deque(maxlen=ONE_IN - 1)
        self._turns: deque[bool] = deque(maxlen=ONE_IN - 1)  # whether one was said in it
        self._ahead: Opener | None = None  # of the open turn

    @property
    def acts(self) -> Set[str]:
        """The words that openers, and lines that ask to wait, are made of."""
        return {word for line in (*self._lines, *self._waiting) for word in words_of(line)}

    @property
    def may_open(self) -> bool:
        """Whether one may be said in the next turn that the large model answers."""
        return bool(self._lines) and (self._waits.are_always_long or not any(self._turns))

    def lines(self, slot: str = "") -> tuple[str, ...]:
        """Return what may be said now, the one that is next in turn first. slot: that was spoken
        of.
        """
        filled = [line.replace(SLOT, slot) for line in self._lines if slot or SLOT not in line]
        left = [line for line in filled if line not in self._said] or filled
        if self._waits.are_always_long:
            return (
                tuple(filter(self._covers, left)) or tuple(sorted(left, key=self._sound_ms))[::-1]
            )
        return tuple(left)

    def _covers(self, line: str) -> bool:
        """Whether its sound lasts until the large model's first."""
        ttft_ms, sound_ms = self._waits.ttft_ms, self._sound_ms(line)
        return ttft_ms is not None and ttft_ms + COVER_MS <= 1000 * self._after_s + sound_ms

    @property
    def _after_s(self) -> float:
        return 0.0 if self._waits.are_always_long else OPENER_AFTER_S

    def begin(
        self, small: LiveBranch | None, tail: tuple[ChatMessage, ...], slot: str = ""
    ) -> None:
        """Have the small model choose the opener of the open turn. None: nobody chooses."""
        self.drop()
        self._ahead = Opener(self.lines(slot), self._after_s)
        if small is not None:
            self._ahead.choose(small, tail, self._tasks)

    def take(self) -> Opener | None:
        opener, self._ahead = self._ahead, None
        return opener

    def drop(self) -> None:
        """The turn is answered without one, or another words' is to be chosen."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    @property
    def goes_first(self) -> bool:
        """Whether the large model is asked to go on behind an opener from the beginning: one will
        be said in any case, and its sound covers the wait.
        """
        return self._waits.are_always_long and any(map(self._covers, self.lines()[:1]))

    def observe(self, line: str | None, released_ms: float, ttft_ms: float) -> None:
        """A turn of the large model's is over. line: the opener that was said in it."""
        self._turns.append(line is not None)
        if line is not None:
            self._said.append(line)
        self._waits.observe(released_ms, ttft_ms)
