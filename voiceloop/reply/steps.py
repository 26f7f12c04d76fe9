"""The rounds of a reply: a prompt, and what the model said, called and used.

Owns the count of a round's tokens (reported by the model, or else estimated), how many of them
nobody heard, and which calls the model may make in the round. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import GenerateParams, ToolCall, Usage
from voiceloop.errors import VoiceLoopError

# Three rounds of tool calls that the agent file answers, and one to speak of them. Chosen: a caller
# waits through all of them, and a model that still calls tools does so without end.
MAX_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class IncompleteCall:
    """A call without the arguments that its tool requires; `missing` are their names."""

    call: ToolCall
    missing: tuple[str, ...]


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
            usage = replace(
                before,
                n_prompt_tokens=before.n_prompt_tokens + usage.n_prompt_tokens,
                n_cached_tokens=before.n_cached_tokens + usage.n_cached_tokens,
                n_reply_tokens=before.n_reply_tokens + usage.n_reply_tokens,
                n_discarded_tokens=before.n_discarded_tokens + usage.n_discarded_tokens,
                n_drafted_tokens=before.n_drafted_tokens + usage.n_drafted_tokens,
                n_accepted_tokens=before.n_accepted_tokens + usage.n_accepted_tokens,
            )
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
        return replace(
            used[0],
            n_prompt_tokens=sum(usage.n_prompt_tokens for usage in used),
            n_cached_tokens=sum(usage.n_cached_tokens for usage in used),
            n_reply_tokens=sum(usage.n_reply_tokens for usage in used) - n_unheard,
            n_discarded_tokens=sum(usage.n_discarded_tokens for usage in used) + n_too_early,
            n_unheard_tokens=n_unheard - n_too_early,
            n_turn_tokens=sum(usage.n_turn_tokens for usage in used),
            n_turn_resident=sum(usage.n_turn_resident for usage in used),
            n_drafted_tokens=sum(usage.n_drafted_tokens for usage in used),
            n_accepted_tokens=sum(usage.n_accepted_tokens for usage in used),
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

    def next_params(self, asked: GenerateParams) -> GenerateParams:
        """How the round after the first is sampled, where that is not the last."""
        return replace(asked, tool_choice="auto")
