"""The rounds of one reply: what the model said and called in each, what it used, when each is late.

A reply has a round for each response; another follows where the server answers the calls of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import GenerateParams, ToolCall, Usage
from voiceloop.errors import BackendTimeout, VoiceLoopError
from voiceloop.reply.plan import GENERATE_DEADLINE_S
from voiceloop.reply.tool_answers import IncompleteCall

# What the model has of its first deadline at the least, where deciding that the turn was over took
# long: a model that answers within it is no slow one.
LEAST_FIRST_S = 2.0
# Three rounds of tool calls that the agent file answers, and one to speak of them. Chosen: a caller
# waits through all of them, and a model that still calls tools does so without end.
MAX_ROUNDS = 4


@dataclass(slots=True)
class ReplyRound:
    """One response: what the model said and called in it.

    n_deltas, n_preemptive_deltas: pieces of text of the reply, and of preemptive replies before it.
    failure: what kept the model from ending it. refused: calls that were not made, for what they
    lack. n_wrong_calls: these, and what named no tool or was written as text. needs_fallback: its
    text broke off, and something must be said behind it. open_calls: made, and left to the client.
    named: the ids under which the model has named its calls.
    """

    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    reported: Usage | None = None
    n_deltas: int = 0
    n_preemptive_deltas: int = 0
    failure: VoiceLoopError | None = None
    refused: list[IncompleteCall] = field(default_factory=list)
    n_wrong_calls: int = 0
    needs_fallback: bool = False
    open_calls: tuple[ToolCall, ...] = ()
    named: set[str] = field(default_factory=set)
    _taken: Usage | None = None

    def report(self, usage: Usage) -> None:
        """The model has ended; where it was asked again, once more."""
        before = self.reported
        if before is not None:
            again = replace(usage, n_unheard_tokens=0, n_turn_tokens=0, n_turn_resident=0)
            usage = added(before, again)
        self.reported = usage

    def take_usage(self) -> Usage:
        """The tokens used since this was last called: a round may take several responses to say."""
        before, self._taken = self._taken, self.usage
        if before is None:
            return self._taken
        return Usage(n_reply_tokens=max(0, self._taken.n_reply_tokens - before.n_reply_tokens))

    @property
    def usage(self) -> Usage:
        """What the model reported; if it was stopped before it did, an estimate from what it said.

        Then each piece of text counts as one token (the least it can be: a model may send several
        in one) and the prompt as none. A preemptive reply that is kept comes anew with the reply
        itself, so its pieces beyond the reply's count as discarded.
        """
        if self.reported is not None:
            return self.reported
        n_discarded = max(0, self.n_preemptive_deltas - self.n_deltas)
        return Usage(n_reply_tokens=self.n_deltas, n_discarded_tokens=n_discarded)


def added(first: Usage, *more: Usage) -> Usage:
    """The tokens of all of them; the times of the first."""
    counts = [name for name in Usage.__struct_fields__ if name.startswith("n_")]
    each = (first, *more)
    return replace(first, **{name: sum(getattr(one, name) for one in each) for name in counts})


class Rounds:
    """The rounds of one reply, in order. failure: what keeps the first of them from an answer."""

    def __init__(self, failure: VoiceLoopError | None = None) -> None:
        self._rounds = [ReplyRound(failure=failure)]
        self._is_last = False

    @property
    def latest(self) -> ReplyRound:
        return self._rounds[-1]

    @property
    def is_first(self) -> bool:
        return len(self._rounds) == 1

    def begin(self, *, is_last: bool = False) -> None:
        """is_last: nothing that is called in it would be waited for."""
        self._rounds.append(ReplyRound())
        self._is_last = is_last or len(self._rounds) >= MAX_ROUNDS

    def usage(self, unheard: float = 0.0) -> Usage:
        """The tokens of all rounds; the times of the first, which the caller waited for.

        unheard: the share of the last round's text that nobody heard, because of an interruption.
        If that is all of it, the caller had not finished and it was made too early: its tokens
        count as discarded. If it is part, it would have been made in any case: as unheard.
        """
        used = [each.usage for each in self._rounds]
        n_unheard = round(unheard * used[-1].n_reply_tokens)
        n_too_early = n_unheard if unheard == 1.0 else 0
        whole = added(*used)
        return replace(
            whole,
            n_reply_tokens=whole.n_reply_tokens - n_unheard,
            n_discarded_tokens=whole.n_discarded_tokens + n_too_early,
            n_unheard_tokens=n_unheard - n_too_early,
        )

    @property
    def called(self) -> tuple[int, int]:
        """Calls of tools that the model wrote, and of these the ones that could not be made."""
        n_wrong = sum(each.n_wrong_calls for each in self._rounds)
        return n_wrong + sum(len(each.calls) for each in self._rounds), n_wrong

    def params(self, asked: GenerateParams) -> GenerateParams:
        """How the latest round is sampled: the first as asked for.

        From the second on a demanded call has been made, so the model may speak; in the last one
        it must, since nobody would answer another call.
        """
        if self.is_first:
            return asked
        return replace(asked, tool_choice="none" if self._is_last else "auto")


class ModelDeadline:
    """For each round: `round` around it, `ask` when it is asked for, `observe` at what comes.

    The deadlines begin with `ask`: those of a reply made ahead with its release. first_s: for the
    first token. waited_s: how much of that the caller has waited already.
    """

    def __init__(self, first_s: float, waited_s: Callable[[], float]) -> None:
        self._first_s = min(first_s, GENERATE_DEADLINE_S)
        self._waited_s = waited_s
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
        if asked_s is not None and self._timeout is not None:
            self._due_s = GENERATE_DEADLINE_S
            self._timeout.reschedule(asked_s + GENERATE_DEADLINE_S)

    @property
    def left_ms(self) -> float:
        """Of the deadline that runs, for who is to be told; 0 where none does."""
        due_s = self._timeout.when() if self._timeout is not None else None
        if due_s is None:
            return 0.0
        return max(1.0, 1000 * (due_s - asyncio.get_running_loop().time()))
