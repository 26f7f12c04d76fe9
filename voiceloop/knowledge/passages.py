"""Documents cut into passages: what is found and read to the model as one piece.

Owns the cut. A passage ends at the end of a paragraph where it can, else of a sentence, else of a
word; nothing is said twice, so that two neighbours found together read on. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from voiceloop.errors import ConfigError
from voiceloop.knowledge.documents import Document

# Of one passage. A turn gives passages some 150 tokens, so that reading them costs little before
# the first word of the answer: that is two of these, at 1.3 tokens a word of English.
MAX_PASSAGE_WORDS = 60
MAX_WORD_CHARS = 200  # of what stands without a space: longer is cut
# Chosen: five times the passages of the largest index that was measured.
MAX_PASSAGES = 50_000

PARAGRAPH_END = re.compile(r"\n\s*\n")
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_a-z]|\d|[\"'(])")


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of one document. number: from 0, over all documents, in their order. is_answer: it is
    what the agent is to say, and no note for its model.
    """

    number: int
    path: str
    heading: str
    text: str
    is_answer: bool = False


def passages_of(documents: Iterable[Document]) -> Iterator[Passage]:
    """All passages, in the order of the documents.

    Raises:
        ConfigError: there are more than MAX_PASSAGES.
    """
    number = 0
    for document in documents:
        for heading, text in document.sections:
            for piece in _pieces(text):
                if number == MAX_PASSAGES:
                    raise ConfigError(
                        f"knowledge: {document.path}: expected at most {MAX_PASSAGES} passages "
                        "in all files, found more"
                    )
                yield Passage(number, document.path, heading, piece)
                number += 1


def _pieces(text: str) -> Iterator[str]:
    """Neighbouring sentences, joined as long as they fit; a paragraph that fits is not cut."""
    piece: list[str] = []
    for paragraph in PARAGRAPH_END.split(text):
        words = _words(paragraph)
        if len(piece) + len(words) <= MAX_PASSAGE_WORDS:
            piece += words
            continue
        if piece:
            yield " ".join(piece)
        piece = []
        for sentence in SENTENCE_END.split(paragraph):
            words = _words(sentence)
            if piece and len(piece) + len(words) > MAX_PASSAGE_WORDS:
                yield " ".join(piece)
                piece = []
            piece += words
            while len(piece) > MAX_PASSAGE_WORDS:
                yield " ".join(piece[:MAX_PASSAGE_WORDS])
                piece = piece[MAX_PASSAGE_WORDS:]
    if piece:
        yield " ".join(piece)


def _words(text: str) -> list[str]:
    found = text.split()
    return [
        word[start : start + MAX_WORD_CHARS]
        for word in found
        for start in range(0, len(word), MAX_WORD_CHARS)
    ]
