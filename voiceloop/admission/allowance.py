"""The allowances that the calls of one key use up: calls of tools, and tokens of the large model.
Each is an hour's, filled evenly.

No call is cut off. Where they are spent, tools are no longer called, and the small model answers,
until some have come back.
Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable

from voiceloop.admission.bucket import Bucket
from voiceloop.operation import KeyQuota

HOUR_S = 3600.0

OnSpent = Callable[[str], None]  # called with the key of `[quota]` that was spent


# Of the calls of tools an hour, so much is kept for those that replies make: one that is made ahead
# may be thrown away, and the caller hears where one of a reply is refused. Chosen.
KEPT_FOR_REPLIES = 0.5


class Allowance:
    """The allowances that the calls of one key use up while they go on."""

    def __init__(
        self, quota: KeyQuota, clock: Callable[[], float], on_spent: OnSpent = lambda what: None
    ) -> None:
        self._on_spent = on_spent
        self._tool_calls = Bucket(quota.tool_calls, quota.tool_calls / HOUR_S, clock)
        self._large_tokens = Bucket(quota.large_tokens, quota.large_tokens / HOUR_S, clock)

    def may_call_ahead(self) -> bool:
        """Whether a tool may be called for a reply that is made ahead."""
        return self._tool_calls.has(1.0, kept=KEPT_FOR_REPLIES)

    def take_tool_call(self) -> bool:
        """Another call of a tool is to be made; returns whether it may be."""
        if not self._tool_calls.has(1.0):
            self._on_spent("tool_calls")
            return False
        self._tool_calls.take()
        return True

    def may_use_large(self) -> bool:
        """Whether the large model of a cascade may answer."""
        return not self._large_tokens.is_empty

    def take_large_tokens(self, n_tokens: int) -> None:
        """The large model has written so many, on credit if need be."""
        if self._large_tokens.is_bounded and n_tokens:
            self._large_tokens.take(n_tokens)
            if self._large_tokens.is_empty:
                self._on_spent("large_tokens")


UNBOUNDED = Allowance(KeyQuota(), lambda: 0.0)
