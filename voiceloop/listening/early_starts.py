"""Early starts: the agent's answer begins at moderate certainty, and the turn ends a little later.

Owns, for one call, whether an answer may begin while the caller's turn is still open, for how long
such a start can be taken back, and whether such starts pay with this caller. Pure: times in ms of
the audio clock (`_ms`) and seconds of the wall's (`_s`).

Source: a start that corrects itself, G. Skantze and A. Hjalmarsson, "Towards incremental speech
generation in conversational systems" (2013).
"""

from __future__ import annotations

from dataclasses import dataclass

# So long the answer is heard before the turn is over: a caller who goes on within it takes it back,
# and the turn is the same one still. Callers who were interrupted mid-sentence mostly go on within
# it; whoever comes later is judged as one who speaks over the agent. Chosen, and below
# TAKEN_BACK_MS of `release`, the whole time in which an answer counts as never said: in the rest of
# it the turn is over, the words are out, and the answer is retracted as any fresh one.
EARLY_MS = 250.0
# Starts that a sound took back although not a word followed: a click, a breath, or the agent's own
# voice out of a loudspeaker. After so many of them a call has no more. Chosen.
MOST_IN_VAIN = 2


@dataclass(frozen=True, slots=True)
class EarlyStart:
    """The answer began then, after these words."""

    from_ms: float
    from_s: float
    words: tuple[str, ...]


class EarlyStarts:
    """`offer` at most one a turn; where it is taken, `begin`, then `take_back` or `end_turn`."""

    def __init__(self, *, is_enabled: bool) -> None:
        self._is_enabled = is_enabled
        self._n_in_vain = 0
        self._start: EarlyStart | None = None
        self.reset()

    def reset(self) -> None:
        """The open turn is over, or was none."""
        self._was_offered = False
        self._start = self._taken_back = None

    def offer(self) -> bool:
        """Whether an answer may begin now that the end is likely; once a turn."""
        if not self._is_enabled or self._was_offered or self._n_in_vain >= MOST_IN_VAIN:
            return False
        self._was_offered = True
        return True

    def begin(self, at_ms: float, at_s: float, words: tuple[str, ...]) -> None:
        self._start = EarlyStart(at_ms, at_s, words)

    @property
    def start(self) -> EarlyStart | None:
        """The one that stands."""
        return self._start

    def left_ms(self, now_ms: float) -> float | None:
        """For how long it can be taken back, at most 0 where it stays; None where there is none."""
        return None if self._start is None else self._start.from_ms + EARLY_MS - now_ms

    def take_back(self) -> None:
        self._start, self._taken_back = None, self._start

    def end_turn(self, words: tuple[str, ...]) -> None:
        """The caller's turn is over, and these are all of its words."""
        if self._taken_back is not None and self._taken_back.words == words:
            self._n_in_vain += 1
        self.reset()
