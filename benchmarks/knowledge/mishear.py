"""Questions as a recognizer might have heard them: words taken for others that sound alike.

Owns the choice of those others: the words of a pronouncing dictionary (CMU's, as pocketsphinx
carries it) that are nearest by their phones. It knows nothing of the keys that the index uses.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

VOWELS = "AA AE AH AO AW AY EH ER EY IH IY OW OY UH UW".split()
# Phones that are made alike, as Miller and Nicely (1955) found them confused in noise.
MANNERS = ("P B T D K G", "F V TH DH S Z SH ZH HH", "CH JH", "M N NG", "L R W Y")
ALIKE = {phone: number for number, row in enumerate(MANNERS) for phone in row.split()}
ALIKE |= dict.fromkeys(VOWELS, len(MANNERS))
COST_ALIKE, COST_OTHER, COST_LOST = 0.5, 1.0, 0.7  # of a phone; chosen
N_NEAR, N_MEASURED = 8, 300  # candidates that are drawn from, and that are measured phone by phone
SHARE_LOST = 0.2  # of the words heard wrong, those not heard at all; about a recognizer's own share


class Mishearing:
    """A caller's words, some of them heard wrong. dictionary: lines of a word and its phones."""

    def __init__(self, dictionary: Path, seed: int) -> None:
        self._dice = random.Random(seed)
        self._phones: dict[str, tuple[str, ...]] = {}
        for line in dictionary.read_text(encoding="utf-8").splitlines():
            word, *phones = line.split()
            if word.isalpha() and phones:
                self._phones.setdefault(word, tuple(phones))
        self._words = list(self._phones)
        names = {name: number for number, name in enumerate(ALIKE)}
        self._counts = np.zeros((len(self._words), len(names)), np.int8)
        for row, word in enumerate(self._words):
            for phone in self._phones[word]:
                self._counts[row, names[phone]] += 1
        self._rows = {word: row for row, word in enumerate(self._words)}
        self._near = cache(self._nearest)

    def hear(self, text: str, share: float, spared: frozenset[str] = frozenset()) -> str:
        """The text with this share of its words, rounded by chance, lost or taken for another.

        spared: words that are always heard right, so that the same number of the others is not.
        """
        words = text.split()
        places = [place for place, word in enumerate(words) if word not in spared]
        n_wrong = min(len(places), int(len(words) * share + self._dice.random()))
        for place in self._dice.sample(places, n_wrong):
            if self._dice.random() < SHARE_LOST:
                words[place] = ""
            elif near := self._near(words[place]):
                words[place] = self._dice.choice(near)
        return " ".join(filter(None, words))

    def _nearest(self, word: str) -> tuple[str, ...]:
        """The words nearest in sound, without those that sound the same."""
        phones = self._phones.get(word)
        if phones is None:
            return ()
        differences = np.abs(self._counts - self._counts[self._rows[word]]).sum(axis=1)
        rows = np.argsort(differences, kind="stable")[:N_MEASURED]
        others = [self._words[row] for row in rows]
        apart = {other: distance(phones, self._phones[other]) for other in others}
        near = sorted((far, other) for other, far in apart.items() if far > 0)
        return tuple(other for _, other in near[:N_NEAR])


def distance(first: tuple[str, ...], second: tuple[str, ...]) -> float:
    """The least cost of making one row of phones the other.

    >>> distance(("K", "AE", "T"), ("K", "AE", "P"))
    0.5
    """
    row = [COST_LOST * n for n in range(len(second) + 1)]
    for phone in first:
        costs = [row[0] + COST_LOST]
        for (diagonal, above), other in zip(pairwise(row), second, strict=True):
            changed = COST_ALIKE if ALIKE[phone] == ALIKE[other] else COST_OTHER
            kept = diagonal + (0.0 if phone == other else changed)
            costs.append(min(kept, above + COST_LOST, costs[-1] + COST_LOST))
        row = costs
    return row[-1]
