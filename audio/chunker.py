"""Text deltas to speakable clauses: what a voice is given at a time.

The first clause is short so that speech starts early, and ends with its mark; later ones grow so
that intonation has room. A cut never falls inside a number, a time, an abbreviation or a name, and
the clauses concatenate to exactly the characters fed. Where the cuts fall depends on the text
alone, not on how it was cut into deltas (only `flush` forces one).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# By index of the clause in the reply, the last value holding for all later ones. A clause mark
# (comma, colon, dash) ends the first clause at once and later ones from so many words on:
MARK_WORDS = (1, 3, 5)
# Without any mark: cut before a word that opens a phrase from so many words on ...
PHRASE_WORDS = (4, 8, 14)
# ... and at any safe gap from so many on. 6 words are about 2 s of speech, enough for the rest
# of the sentence to arrive even from a language model of 20 tokens/s.
ANY_WORDS = (6, 14, 22)
MAX_WORDS = 30  # 10 s of speech; digits read out have no safe gap, yet must not wait for ever
MAX_TOKEN_CHARS = 400  # a "word" longer than this is no word: bound what is held back

# The pause before the next clause, by the mark that ended this one, at normal speed.
PAUSE_MS = {".": 260.0, "?": 260.0, "!": 260.0, ",": 130.0, ";": 180.0, ":": 180.0}

_SENTENCE_MARKS = ".!?\u2026"
_CLAUSE_MARKS = ",;:\u2014\u2013"
_CLOSERS = "\"')]}*_\u2019\u201d"
_TOKEN = re.compile(r"\s*(\S+)(\s+)")
# Ends the first clause whatever follows it: what comes next is a token that a slow model still has
# to make, up to 60 ms of the caller's wait. Behind something opened it may be what closes it.
_FIRST_END = re.compile(
    r"\s*(?:[\w'\u2019-]*[^\W\d_][,!?]|"
    # A full stop only behind what a short first sentence ends with: "juniper.com" begins alike.
    r"(?i:okay|fine|great|good|right|sure|course|problem|understand|understanding|welcome|you|that|it"
    r"|sorry|confusion|inconvenience|hear|help|see)\.)"
)
_OPENED = re.compile(r"[\"\u201c\u201e\u00ab*_`(\[{]|(?<!\w)['\u2018\u201a\u2039]")
_ABBREVIATIONS = frozenset(
    "dr mr mrs ms prof st ave blvd rd vs e.g i.e approx apt dept est fig mt ft tel ext"
    " jan feb mar apr jun jul aug sep sept oct nov dec".split()
)
# These may also end a sentence, as may an initial: the next word's case tells.
_ENDING_ABBREVIATION = re.compile(r"[ap]\.m|[a-z]|etc|inc|ltd|co|[js]r|u\.[sk]|oz|lbs?|min")
_OPENS_PHRASE = frozenset(
    "and but or so because if when while although since unless until that which who where with"
    " for from at in on by after before about then please".split()
)
_LEANS_ON_NEXT = frozenset(
    "a an the of to in on at by for from with and or but so if as is are was were be will would"
    " can could shall should may might must do does did have has had not no my your his her its"
    " our their this that these those i you he she it we they i'm i'll i'd you're it's that's"
    " there's very one two three four five six seven eight nine ten large small medium".split()
)


@dataclass(frozen=True, slots=True)
class Clause:
    """text as fed, white space included; start: its offset in all text fed."""

    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Chunker:
    """Cuts one reply. The texts of all clauses concatenate to the text fed."""

    def __init__(self) -> None:
        self._text = ""  # fed and not yet cut
        self._start = 0  # offset of _text in all text fed
        self._scanned = 0  # offset in _text up to which gaps were looked at
        self._n_words = 0  # words in _text[:_scanned]
        self._n_clauses = 0

    @property
    def held(self) -> str:
        """Text that waits for its clause to be complete."""
        return self._text

    def feed(self, text: str) -> list[Clause]:
        """Clauses that text completes."""
        self._text += text
        return list(self._complete_clauses())

    def flush(self) -> list[Clause]:
        """Cut after the last complete word held back: the text stalls."""
        gap = max((m.end() for m in re.finditer(r"\S\s+", self._text)), default=0)
        before, after = self._text[:gap].rstrip()[-1:], self._text[gap : gap + 1]
        if gap == 0 or (before.isdigit() and (after.isdigit() or not after)):
            return []
        return [self._cut(gap)]

    def finish(self) -> list[Clause]:
        """All that is left; the next text fed starts a new reply's clause lengths."""
        rest = [self._cut(len(self._text))] if self._text else []
        self._n_clauses = 0
        return rest

    def _complete_clauses(self) -> Iterator[Clause]:
        while True:
            first_end = self._n_clauses == 0 and _FIRST_END.match(self._text, self._scanned)
            if first_end and not _OPENED.search(self._text, 0, first_end.end()):
                yield self._cut(first_end.end())
                continue
            match = _TOKEN.match(self._text, self._scanned)
            if match is None:
                if len(self._text) - self._scanned <= MAX_TOKEN_CHARS:
                    return
                yield self._cut(self._scanned + MAX_TOKEN_CHARS)
                continue
            if match.end(1) - self._scanned > MAX_TOKEN_CHARS:
                yield self._cut(self._scanned + MAX_TOKEN_CHARS)
                continue
            following = self._text[match.end() :]
            if not following:
                return  # the white space may go on, and most decisions look at the next word
            next_word = re.match(r"\S+(?=\s)", following)
            decision = self._ends_clause(
                match.group(1), match.group(2), following[0], next_word and next_word.group()
            )
            if decision is None:
                # One that ends with the first clause's mark opens no phrase.
                is_last = self._n_clauses == 0 and _FIRST_END.match(self._text, match.end())
                if not is_last and len(following) <= MAX_TOKEN_CHARS:
                    return
                decision = False
            self._scanned = match.end()
            self._n_words += 1
            if decision:
                yield self._cut(self._scanned)

    def _cut(self, length: int) -> Clause:
        clause = Clause(self._text[:length], self._start)
        self._text = self._text[length:]
        self._start += length
        self._scanned = self._n_words = 0
        self._n_clauses += 1
        return clause

    def _ends_clause(
        self, word: str, gap: str, next_char: str, next_word: str | None
    ) -> bool | None:
        """Whether to cut in the gap after word; None: the next word must be complete first."""
        n_words = self._n_words + 1
        bare = word.rstrip(_CLOSERS)
        if "\n" in gap:
            return True
        if bare and bare[-1] in _SENTENCE_MARKS:
            return _ends_sentence(bare, next_char)
        if bare and bare[-1] in _CLAUSE_MARKS:
            within_number = bare[-2:-1].isdigit() and next_char.isdigit()
            return n_words >= _by_index(MARK_WORDS, self._n_clauses) and not within_number
        if n_words >= MAX_WORDS:
            return True
        if n_words < _by_index(PHRASE_WORDS, self._n_clauses) or not _is_safe_gap(word, next_char):
            return False
        if n_words >= _by_index(ANY_WORDS, self._n_clauses):
            return True
        return None if next_word is None else next_word.lower() in _OPENS_PHRASE


def _by_index(limits: tuple[int, ...], index: int) -> int:
    return limits[min(index, len(limits) - 1)]


def _ends_sentence(word: str, next_char: str) -> bool:
    stem = word.rstrip(_SENTENCE_MARKS).lstrip("\"'([{*_\u2018\u201c").lower()
    if word[-1] != "." or not stem:
        return True
    if _ENDING_ABBREVIATION.fullmatch(stem) and stem != "i":
        # "7 p.m. We" ends, "7 p.m. on" and "J. Smith" do not.
        return next_char.isupper() and len(stem) > 1
    if stem == "no":
        return not next_char.isdigit()  # "No. 5"
    return stem not in _ABBREVIATIONS


def _is_safe_gap(word: str, next_char: str) -> bool:
    """No number, name or phrase is torn between word and what starts with next_char."""
    if word.lower() in _LEANS_ON_NEXT or word[-1:].isdigit() or next_char.isdigit():
        return False
    return not (word[:1].isupper() and next_char.isupper())
