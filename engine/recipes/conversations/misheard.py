"""Real errors of the recognizer: what it heard instead of which words, counted over pairs.

`audio.recipes.hear_turns` writes the pairs; here they become a table of misheard phrases that
disturbs any text the way the recognizer would have.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from pathlib import Path

_LONGEST = 3  # words of a phrase that is replaced as one
# A phrase misheard each of the few times it was said is not misheard always.
_PRIOR = 2.0


class Misheard:
    """Misheard phrases with how often each was said and heard as what."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        said_count: Counter[tuple[str, ...]] = Counter()
        heard_as: dict[tuple[str, ...], Counter[tuple[str, ...]]] = defaultdict(Counter)
        for said_text, heard_text in pairs:
            said, heard = said_text.split(), heard_text.split()
            for size in range(1, _LONGEST + 1):
                said_count.update(tuple(said[at : at + size]) for at in range(len(said) - size + 1))
            matcher = SequenceMatcher(None, said, heard, autojunk=False)
            for kind, i, j, k, m in matcher.get_opcodes():
                if kind == "insert":  # what was added belongs to the word before it
                    i, k = max(0, i - 1), k - (i > 0)
                    j = max(j, i + 1)
                if kind != "equal" and j - i <= _LONGEST and m - k <= _LONGEST:
                    heard_as[tuple(said[i:j])][tuple(heard[k:m])] += 1
        self._variants = {
            phrase: (list(found), list(found.values())) for phrase, found in heard_as.items()
        }
        self._rate = {
            phrase: sum(found.values()) / (said_count[phrase] + _PRIOR)
            for phrase, found in heard_as.items()
        }

    @classmethod
    def read(cls, path: Path) -> Misheard:
        """From JSON lines with `said` and `heard`."""
        records = [json.loads(line) for line in path.read_text().splitlines()]
        return cls((record["said"], record["heard"]) for record in records)

    def disturb(self, words: Sequence[str], kept: frozenset[str], rng: random.Random) -> list[str]:
        """The words as they might be heard; words in `kept` stay."""
        out: list[str] = []
        at = 0
        while at < len(words):
            for size in range(min(_LONGEST, len(words) - at), 0, -1):
                phrase = tuple(words[at : at + size])
                rate = self._rate.get(phrase, 0.0)
                if rate and kept.isdisjoint(phrase) and rng.random() < rate:
                    variants, counts = self._variants[phrase]
                    out += rng.choices(variants, counts)[0]
                    at += size
                    break
            else:
                out.append(words[at])
                at += 1
        return out
