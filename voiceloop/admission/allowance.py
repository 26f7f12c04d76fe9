"""What the calls of one key use up while they go on: an hour's worth of each, filled evenly.

Nothing is cut off. Where it is spent, replies are no longer made ahead of a turn's end, and tools
are no longer called, until some of it has come back. Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable

from voiceloop.operation import KeyQuota

HOUR_S = 3600.0

OnSpent = Callable[[str], None]  # told which key of `[quota]` kept a call from something


# Of the calls of tools an hour, so much is kept for those that replies make: one that is made ahead
# may be thrown away, and the caller hears where one of a reply is refused. Chosen.
KEPT_FOR_REPLIES = 0.5


class Bucket:
    """An hour's worth of something, filled evenly; it may be overdrawn. most 0: no bound."""

    def __init__(self, most: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._left = most
        self._at_s = clock()

    @property
    def is_bounded(self) -> bool:
        return self._most > 0

    def left(self, drained_per_s: float = 0.0) -> float:
        """What is in it, where since the last look so much ran out of it in each second."""
        now_s = self._clock()
        gained = (now_s - self._at_s) * (self._most / HOUR_S - drained_per_s)
        self._left = min(self._most, self._left + gained)
        self._at_s = now_s
        return self._left

    def leaves(self, share: float, amount: float) -> bool:
        """Whether so much may be taken, and such a share of the whole is still there."""
        return not self.is_bounded or self.left() - amount >= share * self._most

    @property
    def is_empty(self) -> bool:
        return self.is_bounded and self.left() <= 0.0

    def take(self, amount: float) -> None:
        self._left = self.left() - amount


class Allowance:
    """What the calls of one key use up while they go on."""

    def __init__(
        self, quota: KeyQuota, clock: Callable[[], float], on_spent: OnSpent = lambda what: None
    ) -> None:
        self._on_spent = on_spent
        self._wasted_tokens = Bucket(quota.speculative_tokens, clock)
        self._tool_calls = Bucket(quota.tool_calls, clock)

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
        return self._tool_calls.leaves(KEPT_FOR_REPLIES, 1.0)

    def take_tool_call(self) -> bool:
        """Another call of a tool is to be made; returns whether it may be."""
        if self._tool_calls.is_bounded and self._tool_calls.left() < 1.0:
            self._on_spent("tool_calls")
            return False
        self._tool_calls.take(1.0)
        return True


UNBOUNDED = Allowance(KeyQuota(), lambda: 0.0)
