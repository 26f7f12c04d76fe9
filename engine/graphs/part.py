"""Owns one sequence's share of a step, and how much of such shares a step has room for."""

from array import array
from dataclasses import dataclass

from ..runner import Extension, Outcome
from ..sequence import Sequence

MAX_SPLIT_ROWS = 128  # of a step: more rows would no longer be bound by reading the weights
MAX_SEQUENCES = 128  # of a step
MAX_WANTED = 128  # rows of a step that tokens are drawn from
MAX_LATE = 16  # of those rows, whose masks come after the step was launched; see `late_draw`
FEW_ROWS = 16  # of a sequence: its attention is split over the KV


@dataclass(slots=True, eq=False)
class Part:
    """One sequence's share of a step.

    extension: as asked for when it was launched. first: the position of its first row, -1 where the
    device knows it: where `before`, a part of the step before, will have ended. fed: tokens of its
    first rows, none where it goes on by itself. width: rows it has room for.
    outcome and end, the position and token it goes on from, are known once it was read; what came
    before it is noted then and let go, or a reply would keep all its steps.
    """

    extension: Extension
    first: int
    fed: list[int]
    width: int
    table: "array[int]"
    place: int = 0
    before: "Part | None" = None
    goes_on: bool = False  # by itself, from where `before` ended
    start: int = 0
    wanted_at: int = -1
    kept_at: int = -1
    outcome: Outcome | None = None
    end: tuple[int, int] = (0, -1)

    @property
    def sequence(self) -> Sequence:
        return self.extension.sequence

    @property
    def position(self) -> int:
        """The position of its first row, known once the step before it was read."""
        return self.first if self.before is None else self.before.end[0]

    @property
    def known(self) -> list[int]:
        """The tokens that it computes and that are no guesses, likewise."""
        return self.fed if self.before is None else [self.before.end[1]]

    @property
    def n_known(self) -> int:
        return max(1, len(self.fed))

    @property
    def n_wanted(self) -> int:
        """Rows that tokens are drawn from, or a probability is asked of."""
        return self.width if self.goes_on else self.extension.n_logits

    @property
    def is_late(self) -> bool:
        """Whether its token is drawn once the host has said which may come; see `late_draw`."""
        return self.goes_on and self.extension.grammar is not None

    @property
    def is_decoding(self) -> bool:
        """Whether it computes one token of a reply that nothing binds, and guesses behind it."""
        asked = self.extension
        is_drawn = asked.n_logits == 1 and asked.draw is not None and asked.grammar is None
        return is_drawn and (self.width == 1 or self.goes_on)

    @property
    def n_kept(self) -> int:
        """Rows whose logits are brought to the host."""
        draw = self.extension.draw
        if draw is None:
            return 0 if self.extension.is_staged else self.n_wanted
        return self.n_wanted if draw.params.logprobs is not None else 0


@dataclass(slots=True)
class Room:
    """The room that a step has left."""

    n_rows: int
    n_kept: int
    n_sequences: int = MAX_SEQUENCES
    n_wanted: int = MAX_WANTED
    n_few: int = MAX_SPLIT_ROWS
    n_late: int = MAX_LATE

    def takes(self, part: Part) -> bool:
        """Whether there is room for `part`, which is taken then."""
        n_few = part.width if part.width <= FEW_ROWS else 0
        left = (
            self.n_rows - part.width, self.n_kept - part.n_kept, self.n_sequences - 1,
            self.n_wanted - part.n_wanted, self.n_few - n_few, self.n_late - part.is_late,
        )  # fmt: skip
        if min(left) < 0:
            return False
        self.n_rows, self.n_kept, self.n_sequences, self.n_wanted, self.n_few, self.n_late = left
        return True


def that_fit(parts: list[Part], room: Room) -> list[Part]:
    """Take parts in order, as far as a step has room."""
    return [part for part in parts if room.takes(part)]
