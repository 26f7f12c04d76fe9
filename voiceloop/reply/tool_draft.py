"""The calls that a preemptive reply begins with, and what came of them: the next round's prompt.

Owns nothing that runs. A version of a preemptive reply that says nothing and calls only tools that
change nothing is as good as made: what follows it can be drafted as soon as its results are there,
and where the caller's words stay as they are, the reply itself begins with that round.
"""

from __future__ import annotations

from dataclasses import dataclass

from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.tools.pending import PendingCall


@dataclass(frozen=True, slots=True)
class ToolDraft:
    """attempt: the version that makes the calls, each with its id. pending: they, made ahead."""

    attempt: int
    calls: tuple[ToolCall, ...]
    pending: tuple[PendingCall, ...]

    @property
    def has_results(self) -> bool:
        """Whether every call has one that the reply may be made of."""
        return all(call.is_over and call.may_be_adopted for call in self.pending)

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The calls and their results, as they follow the caller's turn; once they are over."""
        results = (
            ChatMessage("tool", pending.text, (), call.call_id)
            for call, pending in zip(self.calls, self.pending, strict=True)
        )
        return ChatMessage("assistant", "", self.calls), *results
