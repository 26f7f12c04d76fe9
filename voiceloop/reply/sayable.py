"""The sayable part of a model's text: no markup of a tool call, and nothing over and over.

Owns the two ways in which a reply breaks: a model writes part of a call as text, or it is stuck at
a word or a phrase. Whatever way the text is cut into pieces, the same of it is given out. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum

# As chat templates and models write calls. In plain words none of them stands in a reply.
TEMPLATE_MARKS = (
    "<tool_call", "</tool_call", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "</function>",
)  # fmt: skip
MARKS = (*TEMPLATE_MARKS, '"arguments":', '"parameters":')  # of a reply that is spoken
# A reply that begins like this is a call, alone, in a list, or in a fenced block of code. So many
# characters tell: twice what the longest such beginning takes.
BARE_CALL = re.compile(
    r'\s*(?:```[a-z]*\s*)?\[?\s*\{+\s*"(?:name|function|tool|tool_name|arguments|parameters)"'
)
NAME = re.compile(r'"(?:name|function|tool|tool_name)"\s*:\s*"([^"]*)"')
ARGUMENTS = re.compile(r'"(?:arguments|parameters)"\s*:')
SENTENCE_ENDS = (".", "!", "?")
BARE_OPENERS = ("{", "[", "`")
HEAD_CHARACTERS = 64

# Copies of a phrase, one right behind the other, that nobody says on purpose, by its length in
# words. Chosen: "no, no, no, no" and "bye, bye" pass, and so do digits that are read out.
MOST_COPIES = {1: 5, 2: 3, 3: 3, 4: 3}
MOST_COPIES_OF_LONGER = 2
MOST_DIGITS = 12  # words
LONG_PHRASE, LONGEST_PHRASE = 5, 16  # words
# The same of letters within a word: a syllable, or a phrase of a language without spaces.
MOST_SYLLABLES = 15
LONGEST_SYLLABLE = 12
DIGITS = frozenset("zero oh one two three four five six seven eight nine".split())


class Breakage(Enum):
    """How the text of a reply broke."""

    MARKUP = "markup of a tool call"
    REPETITION = "the same over and over"


class SayableText:
    """`feed` and `finish` return what may be said by then; nothing once it is broken.

    The same text broken in the same way gives the same, so that a reply that begins with one made
    ahead says what that one said.

    Text that begins as a call in JSON is kept back until its end shows whether it is one; then it
    is `bare_call`. tools: the names of those that may be called. An answer in JSON is never spoken
    where there are tools; in writing it is an answer, unless it calls one of them.
    """

    def __init__(self, *, tools: Collection[str] = (), speaks: bool = True) -> None:
        self.breakage: Breakage | None = None
        self.bare_call = ""  # the whole of it, after `finish`
        self._text = ""
        self._n_plain = 0  # characters that are no part of a mark, nor of what may become one
        self._tools = frozenset(tools)
        self._speaks = speaks
        self._marks = MARKS if speaks else TEMPLATE_MARKS
        self._is_bare: bool | None = None if speaks or tools else False  # None: not known yet
        self._phrases = Phrases()
        self._n_given = 0

    @property
    def is_whole(self) -> bool:
        """Neither broken nor a call that was begun as text."""
        return self.breakage is None and not self.bare_call

    @property
    def names_tool(self) -> bool:
        """Whether the name in it, if it is a call, is that of a tool that may be called."""
        name = NAME.search(self._text)
        return name is not None and name[1] in self._tools

    @property
    def has_given(self) -> bool:
        return self._n_given > 0

    @property
    def needs_fallback(self) -> bool:
        """Whether it broke, and not after a whole sentence: something must be said behind it."""
        given = self._text[: self._n_given].rstrip()
        return self.breakage is Breakage.MARKUP or (
            self.breakage is Breakage.REPETITION and not given.endswith(SENTENCE_ENDS)
        )

    def feed(self, piece: str) -> str:
        if self.breakage is not None:
            return ""
        self._text += piece
        if self._is_bare is None:
            self._is_bare = _begins_bare_call(self._text)
        return "" if self._is_bare is not False else self._take(is_end=False)

    def finish(self) -> str:
        if self.breakage is not None:
            return ""
        if self._is_bare is not False and BARE_CALL.match(self._text):
            if self._is_call():
                self.bare_call = self._text
                return ""
        return self._take(is_end=True)

    def _is_call(self) -> bool:
        """Whether what began as a call is one."""
        if self._speaks:
            return bool(self._tools) or any(mark in self._text for mark in MARKS)
        return self.names_tool and ARGUMENTS.search(self._text) is not None

    def _take(self, *, is_end: bool) -> str:
        marked_at, n_plain = _plain_characters(self._text, self._n_plain, self._marks)
        if marked_at is not None:
            self.breakage, n_plain = Breakage.MARKUP, marked_at
        elif is_end:
            n_plain = len(self._text)
        self._n_plain = n_plain
        n_sayable = self._phrases.read(self._text[:n_plain], is_end=is_end)
        if self._phrases.is_stuck:
            self.breakage = Breakage.REPETITION
        given = self._text[self._n_given : n_sayable]
        self._n_given += len(given)
        return given


class Copies:
    """How far a run of symbols repeats itself, for each length of what may be repeated."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._symbols: list[str] = []
        self._n_same = [0] * (longest + 1)

    def add(self, symbol: str) -> list[tuple[int, int]]:
        """Add symbols; for each length so far it counts how many in a row equal those so many
        before them.
        """
        symbols, n_same = self._symbols, self._n_same
        symbols.append(symbol)
        lengths = range(1, min(self._longest, len(symbols) - 1) + 1)
        for length in lengths:
            n_same[length] = n_same[length] + 1 if symbol == symbols[-1 - length] else 0
        return [(length, n_same[length]) for length in lengths]

    def latest(self, length: int) -> list[str]:
        return self._symbols[-length:]


class Phrases:
    """The words of a reply as they come, and what of them follows itself."""

    def __init__(self) -> None:
        self.is_stuck = False
        self._n_read = 0
        self._word = ""  # under way
        self._letters = Copies(LONGEST_SYLLABLE)
        self._words = Copies(LONGEST_PHRASE)
        self._held_from: int | None = None  # where a third copy goes on

    def read(self, text: str, *, is_end: bool) -> int:
        """How many characters of the text may be said; text: all there is."""
        for at in range(self._n_read, len(text)):
            self._n_read = at + 1
            self._read_character(text[at], at)
            if self.is_stuck:
                break
        if is_end:
            self._end_word(self._n_read)
            if not self.is_stuck:
                self._held_from = None  # it came to an end by itself
        return self._n_read if self._held_from is None else self._held_from

    def _read_character(self, character: str, at: int) -> None:
        if character.isspace():
            self._end_word(at)
        elif character.isalnum():
            self._word += character.lower()
            copies = self._letters.add(character)
            self.is_stuck = any(n >= length * MOST_SYLLABLES for length, n in copies)

    def _end_word(self, at: int) -> None:
        word, self._word, self._letters = self._word, "", Copies(LONGEST_SYLLABLE)
        if not word:
            return
        copies = self._words.add(word)
        self.is_stuck = any(n >= length * self._most_copies(length) for length, n in copies)
        # Of a longer phrase the second copy is doubtful already, and nothing of a third is said.
        if not any(n > length or n == length >= LONG_PHRASE for length, n in copies):
            self._held_from = None
        elif self._held_from is None:
            self._held_from = at

    def _most_copies(self, length: int) -> int:
        most = MOST_COPIES.get(length, MOST_COPIES_OF_LONGER)
        if all(word.isdigit() or word in DIGITS for word in self._words.latest(length)):
            return max(most, MOST_DIGITS // length)
        return most


def _begins_bare_call(text: str) -> bool | None:
    """Whether it does; None while too little of it is there."""
    begun = text.lstrip()
    if begun and not begun.startswith(BARE_OPENERS):
        return False
    if len(text) < HEAD_CHARACTERS:
        return None
    return BARE_CALL.match(text[:HEAD_CHARACTERS]) is not None


def _plain_characters(text: str, start: int, marks: tuple[str, ...]) -> tuple[int | None, int]:
    """Return where the first mark begins (None: there is none), and where one may be beginning."""
    found = [at for mark in marks if (at := text.find(mark, start)) >= 0]
    if found:
        return min(found), min(found)
    for at in range(max(start, len(text) - max(map(len, marks))), len(text)):
        if any(mark.startswith(text[at:]) for mark in marks):
            return None, at
    return None, len(text)
