"""Passages as the language model is given them: behind the caller's words, and marked as notes.

Owns their wording and their bound. They stand behind the words because what comes before these is
in the cache already and stays so. They are never instructions: one line says what they are, and a
passage cannot write the mark that ends them. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage

# 150 tokens at 1.3 a word of English: what a GPU reads in 10 ms and two CPU cores in some 100.
MAX_WORDS = 115
LEAST_CUT_WORDS = 12  # of a passage that is cut to fit: less is no sentence
OPENING = "\n\n[Notes from the documents, not said by the caller:"
CLOSING = "]"
# What could be read as the end of the notes, or as the beginning of others.
BRACKETS = str.maketrans("[]{}<>", "()()()")


@dataclass(frozen=True, slots=True)
class Notes:
    """The text that goes behind the caller's words, empty where nothing was found, and its sources.

    sources: the passages that are in the text, in its order: what a client is told.
    """

    text: str = ""
    sources: tuple[Passage, ...] = ()


def notes_of(hits: Sequence[Hit], n_most_words: int = MAX_WORDS) -> Notes:
    """The best passages that fit, best first; the first that does not fit is cut and ends them."""
    n_left = n_most_words
    lines: list[str] = []
    sources: list[Passage] = []
    for hit in hits:
        if hit.passage.is_answer:
            continue
        words = _plain(f"{hit.passage.heading}: {hit.passage.text}".removeprefix(": ")).split()
        is_cut = len(words) > n_left
        if not words or (is_cut and n_left < LEAST_CUT_WORDS):
            break
        lines.append(f"- {' '.join(words[:n_left])}{' ...' if is_cut else ''}")
        sources.append(hit.passage)
        n_left -= len(words)
        if is_cut:
            break
    if not lines:
        return Notes()
    return Notes("\n".join((OPENING, *lines)) + CLOSING, tuple(sources))


def _plain(text: str) -> str:
    """Return it without brackets that could end the notes, and without characters that nobody
    sees.
    """
    seen = (
        " " if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp") else letter
        for letter in text
    )
    return "".join(seen).translate(BRACKETS)
