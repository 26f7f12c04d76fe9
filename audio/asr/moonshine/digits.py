"""A number of so many digits: the likeliest one that the sound allows.

Who was asked for a number says digits, and words that only sound like them ("heaven", "to", "by")
are errors. A beam search over the decoder's own scores, in which nothing but digits is said, finds
what was meant; how likely that is tells whether it was a number at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .network import MoonshineNetwork
from .vocabulary import END, START, WORD_MARK, MoonshineVocabulary

DIGITS = "zero one two three four five six seven eight nine oh".split()
REPEATS = {"double": 2, "triple": 3}
MARKS = ",.-"  # that it writes between the digits
# A telephone number of so many digits may have one more, with this one before it.
PHONE_DIGITS, NATIONAL_PREFIX = 10, "one"
# Numbers that are followed at once, and how far behind the likeliest one they may be.
BEAM, MOST_BEHIND = 3, 2.5


@dataclass(frozen=True, slots=True)
class _Next:
    """Tokens that a number may go on with. times: how often the digit is said; 0: it is none."""

    tokens: tuple[int, ...]
    times: int


@dataclass(frozen=True, slots=True)
class ReadNumber:
    """A whole number, or its beginning. score: the log-probability of its tokens, the end included
    where it is whole; before_last: of those up to the digit before the last; states: behind them.
    """

    score: float
    before_last: float
    tokens: tuple[int, ...]
    states: Any


@dataclass(frozen=True, slots=True)
class _Number(ReadNumber):
    """The digits so far. at_digit: the score at the last of them; times: how often the next one is
    said; follows: log-probabilities.
    """

    at_digit: float
    n_digits: int
    times: int
    follows: NDArray[np.float32]


class DigitReader:
    """Reads numbers with a network and its vocabulary."""

    def __init__(self, network: MoonshineNetwork, vocabulary: MoonshineVocabulary) -> None:
        self._network = network
        self._digits, self._repeats = (
            [
                _Next(tokens, REPEATS.get(word, 1))
                for word in words
                for text in (word, word.capitalize())
                if (tokens := vocabulary.piece(WORD_MARK + text) or vocabulary.encode(text))
            ]
            for words in (DIGITS, REPEATS)
        )
        prefix = (NATIONAL_PREFIX, NATIONAL_PREFIX.capitalize())
        self._prefixes = {
            tokens for text in prefix if (tokens := vocabulary.piece(WORD_MARK + text))
        }
        self._marks = [_Next(piece, 0) for mark in MARKS if (piece := vocabulary.piece(mark))]

    def read(self, context: Any, n_digits: int, least: float) -> ReadNumber | None:
        """The likeliest number of so many digits, or of one more; None where none reaches this
        score.
        """
        best: ReadNumber | None = None
        numbers = [self._begun(context)]
        while numbers:
            for one in numbers:
                score = one.score + float(one.follows[END])
                is_whole = n_digits <= one.n_digits and one.times == 1
                if is_whole and score >= least:
                    least, best = score, ReadNumber(score, one.before_last, one.tokens, one.states)
            found = [
                (one.score + float(one.follows[then.tokens[0]]), one, then)
                for one in numbers
                for then in self._nexts(one, n_digits)
            ]
            found = sorted(found, key=lambda each: -each[0])[:BEAM]
            near = max(least, found[0][0] - MOST_BEHIND) if found else least
            numbers = [
                self._longer(context, one, then) for score, one, then in found if score > near
            ]
        return best

    def _nexts(self, one: _Number, n_digits: int) -> Iterator[_Next]:
        n_most = n_digits + (n_digits == PHONE_DIGITS and one.tokens[:1] in self._prefixes)
        if one.n_digits + one.times <= n_most:
            yield from self._digits
        if one.times > 1:
            return
        yield from (each for each in self._repeats if one.n_digits + each.times <= n_most)
        if one.tokens and one.tokens[-1:] not in [each.tokens for each in self._marks]:
            yield from self._marks

    def _begun(self, context: Any) -> _Number:
        logits, states = self._network.step(context, None, (START,))
        return _Number(0.0, 0.0, (), states, 0.0, 0, 1, log_softmax(logits)[-1])

    def _longer(self, context: Any, one: _Number, then: _Next) -> _Number:
        logits, states = self._network.step(context, one.states, then.tokens)
        follows = log_softmax(logits)
        rows = (one.follows, *follows)[:-1]
        found = zip(rows, then.tokens, strict=True)
        score = one.score + sum(float(row[token]) for row, token in found)
        tokens, n_digits, times = (*one.tokens, *then.tokens), one.n_digits, one.times
        before, at_digit = one.before_last, one.at_digit
        if then in self._digits:
            n_digits, times, before, at_digit = n_digits + times, 1, at_digit, score
        elif then in self._repeats:
            times = then.times
        return _Number(score, before, tokens, states, at_digit, n_digits, times, follows[-1])


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Log-probabilities [n, n_tokens] of scores."""
    below = logits - logits.max(axis=-1, keepdims=True)
    return below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
