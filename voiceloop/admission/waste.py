"""What one session may throw away on replies that are made before they are asked for.

Pure: the clock is passed in. What all sessions of a key may, is in `allowance.py`.
"""

from __future__ import annotations

from collections import deque


class WasteBudget:
    """What one session may throw away on replies that nobody heard.

    The only bound on speculative waste: MAX_PER_TURN requests in one turn of the caller, and the
    tokens and audio that the keys `anticipation.budget_*` allow in WINDOW_S. Their defaults are
    chosen: of replies of 30 tokens and 6 s of speech they let some 30 be thrown away in a minute
    before anything of them is spoken, or 10 that were synthesized whole.
    """

    MAX_PER_TURN = 4  # chosen: a caller who stops at every word must not buy a reply at each
    # Versions of which only the calls are read, to words that are not over: mostly a token or two,
    # for a reply that says something is given up there. Chosen: two seconds of hypotheses.
    MAX_LOOK_UPS = 8
    WINDOW_S = 60.0  # the keys are stated per minute; older waste is forgiven

    def __init__(self, n_tokens_most: int, speech_ms_most: float) -> None:
        self._n_tokens_most = n_tokens_most
        self._speech_ms_most = speech_ms_most
        self._n_begun = 0
        self._n_look_ups = 0
        self._wasted: deque[tuple[float, int, float]] = deque()  # at, tokens, ms of speech

    def begin_turn(self) -> None:
        """Another turn of the caller begins."""
        self._n_begun = self._n_look_ups = 0

    def count_request(self) -> None:
        self._n_begun += 1

    def take_look_up(self) -> bool:
        """Another look-up is to be made; returns whether it may be."""
        self._n_look_ups += 1
        return self._n_look_ups <= self.MAX_LOOK_UPS

    def add_waste(self, now_s: float, n_tokens: int, speech_ms: float) -> None:
        if n_tokens or speech_ms:
            self._wasted.append((now_s, n_tokens, speech_ms))

    @property
    def is_turn_spent(self) -> bool:
        return self._n_begun >= self.MAX_PER_TURN

    def is_spent(self, now_s: float) -> bool:
        while self._wasted and self._wasted[0][0] < now_s - self.WINDOW_S:
            self._wasted.popleft()
        n_tokens = sum(entry[1] for entry in self._wasted)
        speech_ms = sum(entry[2] for entry in self._wasted)
        return n_tokens >= self._n_tokens_most or speech_ms >= self._speech_ms_most
