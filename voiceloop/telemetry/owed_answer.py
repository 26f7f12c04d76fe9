"""The silence that a caller hears to whom an answer is owed.

Owns `OwedAnswer`: when a call began to owe one, and what ends that. Pure.
"""

from __future__ import annotations

from collections.abc import Callable


class OwedAnswer:
    """The answer that one call owes. `observe` is given the seconds of each silence.

    A silence ends with the first sound, be it the reply, a line that asks to wait or the fallback;
    with the caller's next words; or with the call. One in which nothing was to be heard after all
    (a reply in text, a call of a tool that the client answers) is none.
    """

    def __init__(self, observe: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._observe = observe
        self._clock = clock
        self._since_s: float | None = None

    def owe(self, since_s: float | None = None) -> None:
        """Note that an answer is owed from now, or from then; the first moment counts."""
        if self._since_s is None:
            self._since_s = self._clock() if since_s is None else since_s

    def end(self) -> None:
        """Something is heard, the caller speaks, or the call is over."""
        if self._since_s is not None:
            self._observe(max(0.0, self._clock() - self._since_s))
            self._since_s = None

    def waive(self) -> None:
        """Waive the answer: there was nothing to be heard."""
        self._since_s = None
