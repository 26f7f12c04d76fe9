"""Moonshine's tokens: how they spell words, which a caller may say, and which are likelier here.

Its English checkpoints share one SentencePiece vocabulary of 32768 pieces. It is read from
`tokenizer.bin` (every piece behind its length) or `tokenizer.json`.
"""

import json
import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...errors import AudioError
from ...normalize import spoken_words
from ..local_agreement import HypothesisWord

WORD_MARK = "\u2581"  # SentencePiece's sign of the space before a word
START, END = 1, 2
N_LOGITS = 32_768
N_BYTES = 256  # pieces of a single byte each, behind the end; no English word needs one
LONG_PIECE = 128  # a length from here on takes a second byte
# In units of log-probability. A rival further behind the best than this was not said, whatever is
# on the menu.
RIVAL_MARGIN = 4.0
BEGIN_PUSH, GO_ON_PUSH = 1.0, 2.0

# Letters and the marks that stand in speech; without the rest it writes no note signs and credits
# of films, which it knows from subtitles, over noise.
_SPEAKABLE = re.compile(r"[A-Za-z'.,?! \u2581-]+\Z")
# Figures and signs: with a penalty (in units of log-probability) the model mostly spells what was
# said ("four fifty", not "$4.50"), as an agent reads it; barred from them it breaks off a number.
_FIGURES = re.compile(r"[\d$\u20ac\u00a3%.,\u2581-]+\Z")
_SIGNS = "$\u20ac\u00a3"
FIGURE_PENALTY = 4.0
# As many figures as this are said one by one, unless they are a year or hundreds.
MANY_FIGURES = 3
_SAID_AS_NUMBER = re.compile(r"(?:1[1-9]|20)\d\d|\d+00")
# Words of a number that is said digit by digit; each is one piece, as is a figure.
_DIGITS = frozenset("zero oh o one two three four five six seven eight nine ten hundred".split())
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[.?!,]*")
# Behind figures: what stands before it is a time. Of 48 times of day that hibari said ("at seven
# thirty pm") it wrote 30 in figures, with a point: 7.30 pm.
_HALF_DAY = re.compile(r"[ap]\.?m\b[.?!,]*", re.I)


class MoonshineVocabulary:
    """The pieces of a folder's vocabulary.

    Raises: AudioError if the folder has none, or one of another shape.
    """

    def __init__(self, folder: Path) -> None:
        pieces = _read_pieces(folder)
        self._pieces = [*pieces, *[""] * (N_LOGITS - len(pieces))]
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        penalties = [_penalty(piece) for piece in self._pieces]
        self.penalties: NDArray[np.float32] = np.array(penalties, np.float32)
        self.penalties[END] = 0.0
        self.penalties[END + 1 : END + 1 + N_BYTES] = np.inf
        # A window in which somebody speaks begins with a word.
        has_words = np.array([_has_word(piece) or piece == WORD_MARK for piece in self._pieces])
        self.penalties_of_beginning = np.where(has_words, self.penalties, np.float32(np.inf))
        self.penalties_of_beginning[END] = np.inf

    def encode(self, text: str) -> tuple[int, ...]:
        """The pieces of words that stand behind others; () where a character is no piece.

        SentencePiece numbers its pieces in the order in which it learned to join them: what has
        the lowest number is joined first.
        """
        pieces = list(WORD_MARK + text.strip().replace(" ", WORD_MARK))
        while True:
            joins = [self._ids.get(a + b, N_LOGITS) for a, b in pairwise(pieces)]
            best = min(joins, default=N_LOGITS)
            if best == N_LOGITS:
                break
            at = joins.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        if any(piece not in self._ids for piece in pieces):
            return ()
        return tuple(self._ids[piece] for piece in pieces)

    def piece(self, text: str) -> tuple[int, ...]:
        """The piece that is this text; () where none is."""
        return (self._ids[text],) if text in self._ids else ()

    def says_digits(self, tokens: Iterable[int]) -> bool:
        """Whether all their words are figures or stand for digits, and there is one."""
        pieces = [self._pieces[token] for token in tokens]
        words = [piece.strip(WORD_MARK + "-").lower() for piece in pieces if _has_word(piece)]
        return bool(words) and all(word.isdecimal() or word in _DIGITS for word in words)

    def words(self, tokens: Iterable[int]) -> tuple[HypothesisWord, ...]:
        """tokens as spoken words, lower case; a mark's token stands with the word before it."""
        groups: list[list[int]] = []
        is_joined = False
        for token in tokens:
            piece = self._pieces[token]
            has_word = _has_word(piece)
            # A hyphen ends a word as a space does.
            if not groups or (has_word and (piece.startswith((WORD_MARK, "-")) or not is_joined)):
                groups.append([])
            groups[-1].append(token)
            is_joined = not piece.endswith(("-", WORD_MARK))
        written = [self._written(group) for group in groups]
        words = [
            HypothesisWord(_spoken(one, following), tuple(group))
            for group, one, following in zip(groups, written, [*written, ""][1:], strict=True)
        ]
        return tuple(word for word in words if word.text)

    def _written(self, group: Sequence[int]) -> str:
        return "".join(self._pieces[token] for token in group).replace(WORD_MARK, " ").strip()


def _spoken(written: str, following: str) -> str:
    """A word as it was said. following: the one behind it, "" where none is."""
    if _INITIALS.fullmatch(written):
        return written.strip("?!,").replace(".", "").lower()
    figures = written.strip("-.,?!")
    if figures.isdecimal() and len(figures) >= MANY_FIGURES:
        if not _SAID_AS_NUMBER.fullmatch(figures):
            written = " ".join(figures)
    if figures[:1].isdecimal() and _HALF_DAY.fullmatch(following):
        return " ".join(spoken_words(f"{written} pm")[:-1])
    return " ".join(spoken_words(written))


def _has_word(piece: str) -> bool:
    return any(c.isalnum() or c in _SIGNS for c in piece)


def _penalty(piece: str) -> float:
    if _SPEAKABLE.match(piece):
        return 0.0
    return FIGURE_PENALTY if _FIGURES.match(piece) else math.inf


_Node: TypeAlias = dict[int, "_Node"]


class PhraseHints:
    """Phrases that are likelier in this call: a push for their tokens where the sound allows them.

    A token is pushed only while the model itself takes it for a rival of its best one, so that a
    phrase that was not said is not heard; within a phrase more than for its beginning.
    """

    def __init__(self, sequences: Iterable[Sequence[int]], space: Sequence[int] = ()) -> None:
        """space: pieces that are no more than the space before a word. They begin what is not the
        phrase too (each figure: "iced tea" made nothing of "zero one"), so none is pushed.
        """
        self._root: _Node = {}
        self._longest = 0
        for sequence in sequences:
            node = self._root
            for token in sequence:
                node = node.setdefault(token, {})
            self._longest = max(self._longest, len(sequence))
        self._beginnings = [token for token in self._root if token not in space]

    def push(self, scores: NDArray[np.float32], said: Sequence[int]) -> None:
        """Raise in place the scores (one a token) of what goes on with or begins a phrase."""
        if not self._root:
            return
        pushes = dict.fromkeys(self._beginnings, BEGIN_PUSH)
        for n_said in range(1, min(self._longest, len(said) + 1)):
            node: _Node | None = self._root
            for token in said[-n_said:]:
                node = node.get(token) if node is not None else None
            pushes |= dict.fromkeys(node or (), GO_ON_PUSH)
        tokens = np.fromiter(pushes, int)
        rivals = scores[tokens] > scores.max() - RIVAL_MARGIN
        scores[tokens[rivals]] += np.fromiter(pushes.values(), np.float32)[rivals]


def _read_pieces(folder: Path) -> list[str]:
    binary, text = folder / "tokenizer.bin", folder / "tokenizer.json"
    try:
        if binary.is_file():
            pieces = _pieces_of(binary.read_bytes())
        elif text.is_file():
            vocabulary = json.loads(text.read_text("utf-8"))["model"]["vocab"]
            pieces = sorted(vocabulary, key=vocabulary.__getitem__)
        else:
            raise AudioError(f"expected tokenizer.bin or tokenizer.json in {folder}, found none")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise AudioError(f"expected Moonshine's tokenizer in {folder}, found: {error}") from error
    if pieces[START : END + 1] != ["<s>", "</s>"] or len(pieces) > N_LOGITS:
        raise AudioError(
            f"expected Moonshine's tokenizer in {folder}, found {pieces[START : END + 1]} "
            "where it has its start and its end"
        )
    return pieces


def _pieces_of(data: bytes) -> list[str]:
    pieces: list[str] = []
    at = 0
    while at < len(data):
        length, at = data[at], at + 1
        if length >= LONG_PIECE:
            length, at = length - LONG_PIECE + LONG_PIECE * data[at], at + 1
        pieces.append(data[at : at + length].decode("utf-8", errors="replace"))
        at += length
    return pieces
