"""What the calls of one key use up while they go on: an hour's worth of each, filled evenly.

No call is cut off. Where a part is spent, replies are no longer made ahead of a turn's end, or
tools are no longer called, until some of it has come back. Pure: the clock is passed in.
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
    """What the calls of one key use up while they go on."""

    def __init__(
        self, quota: KeyQuota, clock: Callable[[], float], on_spent: OnSpent = lambda what: None
    ) -> None:
        self._on_spent = on_spent
        tokens, calls = quota.speculative_tokens, quota.tool_calls
        self._wasted_tokens = Bucket(tokens, tokens / HOUR_S, clock)
        self._tool_calls = Bucket(calls, calls / HOUR_S, clock)

    def may_speculate(self) -> bool:
        """Whether replies may be made ahead, of which some are thrown away."""
        if self._wasted_tokens.is_empty:
            self._on_spent("speculative_tokens")
            return False
        return True

    def add_waste(self, n_tokens: int) -> None:
        """So many tokens were thrown away: of replies made ahead, or taken back unheard."""
        self._wasted_tokens.take(n_tokens)

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


UNBOUNDED = Allowance(KeyQuota(), lambda: 0.0)
