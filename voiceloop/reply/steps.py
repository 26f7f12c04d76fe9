"""The rounds of a turn: each a prompt, and what the model said, called and used in answer to it.

Owns the count of a round's tokens, whether or not the model came to report it, how many of them
were for nothing, and which calls the model may make in the round. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from voiceloop.backends import GenerateParams, ToolCall, Usage
from voiceloop.errors import VoiceLoopError

MAX_ROUNDS = 4  # tool calls answered by the agent file, one after the other


@dataclass(slots=True)
class ReplyRound:
    """One response: what the model said and called in it.

    n_deltas, n_draft_deltas: pieces of text that came of the reply, and of drafts of it before.
    failure: what kept the model from ending it.
    """

    calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str = "stop"
    reported: Usage | None = None
    n_deltas: int = 0
    n_draft_deltas: int = 0
    failure: VoiceLoopError | None = None
    _told: Usage | None = None

    def take_usage(self) -> Usage:
        """What was used since it was last taken: a round may take several responses to say."""
        told, self._told = self._told, self.usage
        if told is None:
            return self._told
        return Usage(n_reply_tokens=max(0, self._told.n_reply_tokens - told.n_reply_tokens))

    @property
    def usage(self) -> Usage:
        """What the model reported; of a round cut short before that, what was seen of it.

        Then each piece of text counts as one token (a model may send several in one, so it is the
        least there were) and the prompt, of which nothing is known, as none. The text of a draft
        comes anew with the reply: drafted pieces beyond the reply's are discarded ones.
        """
        if self.reported is not None:
            return self.reported
        n_discarded = max(0, self.n_draft_deltas - self.n_deltas)
        return Usage(n_reply_tokens=self.n_deltas, n_discarded_tokens=n_discarded)


class Rounds:
    """The rounds of one turn, one after the other. failure: what keeps the first from a reply."""

    def __init__(self, failure: VoiceLoopError | None = None) -> None:
        self._rounds = [ReplyRound(failure=failure)]

    @property
    def latest(self) -> ReplyRound:
        return self._rounds[-1]

    def begin(self) -> None:
        self._rounds.append(ReplyRound())

    def usage(self, unheard: float = 0.0) -> Usage:
        """The tokens of all rounds; the times of the first, which the caller waited for.

        unheard: the share of the last round's reply that was cut short before anybody heard it.
        All of it: the caller had not finished, and it was made too early. Part of it: the caller
        interrupted, and it would have been made without any haste.
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
        )

    def params(self, asked: GenerateParams) -> GenerateParams:
        """How the latest round is drawn: the first as asked for.

        A call that was demanded has been made by the second round, so the model may speak; in the
        last round it must, since nobody would answer another call.
        """
        number = len(self._rounds)
        if number == 1:
            return asked
        return replace(asked, tool_choice="none" if number >= MAX_ROUNDS else "auto")
