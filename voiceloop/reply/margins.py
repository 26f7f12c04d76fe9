"""How sure a model was of the clauses that it wrote: what has a reply go on with the larger one."""

from __future__ import annotations

from collections.abc import Sequence

from voiceloop.backends import TokenLogprob
from voiceloop.reply.reply_text import CLAUSE_MARKS

TOP = 2  # likeliest tokens that a margin needs
# Words that a sentence needs and no fact lies in; of figures every token counts.
SHORT = 3


class Margins:
    """Of one round. A margin is the likeliest token's log probability less the next one's, in nats.

    least: the mean margin of the content words of a clause, of the clause where that was least;
    None before there is one.
    """

    def __init__(self) -> None:
        self.least: float | None = None
        self._clause: list[float] = []

    def feed(self, logprobs: Sequence[TokenLogprob]) -> None:
        """More tokens of the text. One that comes without its margin counts for nothing."""
        for one in logprobs:
            bare = one.token.strip()
            if len(one.top) >= TOP and _is_content(bare):
                self._clause.append(one.top[0][1] - one.top[1][1])
            if bare[-1:] in tuple(CLAUSE_MARKS):
                self.end_clause()

    def end_clause(self) -> None:
        """A clause ends here, and so may the reply."""
        if self._clause:
            mean = sum(self._clause) / len(self._clause)
            self.least = mean if self.least is None else min(self.least, mean)
            self._clause = []


def _is_content(token: str) -> bool:
    return any(map(str.isdigit, token)) or (len(token) > SHORT and any(map(str.isalpha, token)))
