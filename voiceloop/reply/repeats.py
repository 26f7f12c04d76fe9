"""Repetitions: a model's words that were said before are taken out of the beginning of its text."""

from __future__ import annotations

import re
from collections.abc import Set

WORD = re.compile(r"\S+\s*")
ENDS = (".", "!", "?")
LEAST_REPEATED = 3  # words: fewer begin many sentences
EDGES = ".,;:!?\"'“”’…-"


class Repeats:
    """The repeated words of one text behind words that were said.

    said: these words. acts: words of which a first sentence may be made that does no more than an
    opener does, and is left out too; none where no opener was said.
    """

    def __init__(self, said: str, acts: Set[str] = frozenset()) -> None:
        self._said = [_bare(word) for word in said.split()]
        marks = [word[-1:] in EDGES for word in said.split()]
        # A repetition begins where the words did, or where one of their clauses does.
        self._starts = [i for i in range(len(self._said)) if i == 0 or marks[i - 1]]
        self._acts = acts
        self._held = ""  # of the text, while it may be a repetition
        self._is_over = not self._said

    def feed(self, text: str) -> str:
        """More of the text; returns what of it is new, once that is known."""
        if self._is_over:
            return text
        self._held += text
        complete = [one for one in WORD.findall(self._held) if one[-1:].isspace()]
        return self._settle(complete)

    def finish(self) -> str:
        if self._is_over:
            return ""
        return self._settle(WORD.findall(self._held), is_whole=True)

    def _settle(self, words: list[str], *, is_whole: bool = False) -> str:
        spoken = [_bare(word) for word in words]
        n = len(spoken)
        for start in self._starts:
            rest = self._said[start:]
            if spoken[: len(rest)] == rest:
                return self._pass("".join(words[: len(rest)]))
        end = next((i for i, word in enumerate(words, 1) if word.rstrip()[-1:] in ENDS), 0)
        if end and self._acts and set(spoken[:end]) <= self._acts:
            return self._pass("".join(words[:end]))
        longest = max(_n_same(spoken, self._said[start:]) for start in self._starts)
        if longest >= LEAST_REPEATED and longest < n:  # it goes on otherwise: behind the clause
            marked = [i for i in range(1, longest + 1) if words[i - 1].rstrip()[-1:] in EDGES]
            return self._pass("".join(words[: max(marked, default=0)]))
        may_repeat = any(self._said[start:][:n] == spoken for start in self._starts)
        may_act = bool(self._acts) and not end and set(spoken) <= self._acts
        if is_whole or not (may_repeat or may_act):
            return self._pass("")
        return ""

    def _pass(self, repeated: str) -> str:
        """Pass these characters: what is behind them is new, and all that follows."""
        self._is_over = True
        held, self._held = self._held.lstrip(), ""
        return held[len(repeated) :] if repeated else held


def _n_same(words: list[str], said: list[str]) -> int:
    """Return with how many of the said words they begin."""
    pairs = enumerate(zip(words, said, strict=False))
    return next((i for i, (one, other) in pairs if one != other), min(len(words), len(said)))


def _bare(word: str) -> str:
    return word.strip().lower().replace("’", "'").strip(EDGES)
