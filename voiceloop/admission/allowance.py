"""The allowance that the calls of one key use up: an hour's tokens of the large model.

They come back evenly. No call is cut off: where they are spent, the small model answers until some
have come back.
Pure: the clock is passed in.
"""

from __future__ import annotations

from collections.abc import Callable

from voiceloop.admission.bucket import Bucket
from voiceloop.operation import KeyQuota

HOUR_S = 3600.0

OnSpent = Callable[[str], None]  # called with the key of `[quota]` that was spent


class Allowance:
    """The allowances that the calls of one key use up while they go on."""

    def __init__(
        self, quota: KeyQuota, clock: Callable[[], float], on_spent: OnSpent = lambda what: None
    ) -> None:
        self._on_spent = on_spent
        self._large_tokens = Bucket(quota.large_tokens, quota.large_tokens / HOUR_S, clock)

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
