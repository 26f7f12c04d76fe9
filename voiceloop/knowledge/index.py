"""The index of one folder's passages: full-text search that forgives what a recognizer mishears.

Owns an SQLite FTS5 table with three columns, all of them ranked by one BM25: the heading, the text,
and how the words of both sound. A word that was heard right matches in two columns and counts for
more; one that was taken for another of its sound still matches in the third. Blocking: one search
takes a millisecond and more, so it belongs into a thread (`retriever.py`).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import PurePosixPath

from voiceloop.errors import ConfigError
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.sounds import sound_key
from voiceloop.knowledge.words import words_of

# Of a question, the rarest: longer ones are a story, and every term costs a scan of its passages.
MAX_TERMS = 16
# A word in more of the passages than this share tells none of them apart; in a small folder, where
# every word is common, one in FEW of them still does.
COMMON_SHARE = 0.25
FEW = 8
# A folder of fewer passages is ranked as if it had so many: in one of five BM25 takes a word that
# three hold, as all of a file do what its name says, for none.
LEAST_ROWS = 64
NOBODYS = "\ue000"  # their only word: for private use, so that no text holds it
# The closed classes of English, as callers use them: in a small folder they can be as rare as a
# noun. Nothing is lost where a passage is about one of them: its other words find it.
FUNCTION_WORDS = {
    "en": frozenset(
        "a about after all also am an and any are as at be been before but by can could "
        "did do does for from get go had has have he her him his how i if in is it its "
        "just many me much my no not of on or our please she should so some that the their them "
        "then there they this to up us was we were what when where which who why will "
        "with would yes you your i'd i'm i've it's don't that's what's "
        # What callers say to what they are told: on no page it means anything.
        "alright correct fine good great hello hey hi nice ok okay perfect right sounds sure "
        "thank thanks".split()
    )
}
# A key of one sound stands for a hundred words.
MIN_KEY_SOUNDS = 2
# Keys of three sounds that differ in one are mostly other words: with them recall@4 of the tuning
# half was 90.3 % and without them 91.2 % (`benchmarks/knowledge_bench.py`, 20 % misheard).
MIN_NEAR_SOUNDS = 4
# Of a match in the heading, the text and the sounds. Headings from 1 to 4 and sounds from 0.2 to 1
# moved recall@4 there by 0.2 points, so the rule is: what was read goes before what was guessed.
WEIGHTS = (2.0, 1.0, 0.3)
# What the best passage must score for any to be told, in units of one word that stands in no other
# passage: a word and its sound come to 1.4 there, a sound alone to 0.4. Chosen on the tuning half:
# 95 % of misheard questions keep passages, of turns from other domains 11 in 100 are given some.
LEAST_SCORE = 1.25
LEAST_SCORE_PER_WORD = 0.8  # where the turn has one telling word, that alone may do
LEAST_SHARE = 0.5  # of the best score: what has less is about something else that was named too
MARK = " "
MAX_RESULTS = 100


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found. score: BM25, larger is better, of no meaning across indexes."""

    passage: Passage
    score: float


class KnowledgeIndex:
    """Built once and then only read. One thread at a time may search it.

    language: of the documents; English words are also found by their stem.
    with_sounds: False leaves the third column out of the search, to measure what it is worth.

    Raises:
        ConfigError: this Python's SQLite was built without FTS5.
    """

    def __init__(
        self, passages: Iterable[Passage], language: str = "en", *, with_sounds: bool = True
    ) -> None:
        self.passages = tuple(passages)
        tongue = language.lower().split("-")[0]
        self._function_words = FUNCTION_WORDS.get(tongue, frozenset())
        self._with_sounds = with_sounds
        self._n_passages_of: Counter[str] = Counter()  # by word, and by key of sounds
        # Built by one thread and searched by others, one at a time: the owner sees to that.
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        # The stemmer also takes the plural's s off a key of sounds; for both sides alike.
        stemmer = "porter " if tongue == "en" else ""
        try:
            self._connection.execute(
                "CREATE VIRTUAL TABLE passage USING fts5(heading, text, sounds, content='', "
                f'tokenize="{stemmer}unicode61 remove_diacritics 2")'
            )
        except sqlite3.OperationalError as error:
            raise ConfigError(
                f"knowledge: expected an SQLite with FTS5 in this Python, found none ({error})"
            ) from None
        rows = [self._row(rowid, passage) for rowid, passage in enumerate(self.passages)]
        if 0 < len(rows) < LEAST_ROWS:  # with others as long as these, for length counts too
            n_words = sum(len(" ".join(texts).split()) for _, *texts in rows) // len(rows)
            fill = f"{NOBODYS} " * n_words
            rows += [(rowid, "", fill, "") for rowid in range(len(rows), LEAST_ROWS)]
        self._connection.executemany(
            "INSERT INTO passage(rowid, heading, text, sounds) VALUES (?, ?, ?, ?)", rows
        )
        self._near: dict[str, set[str]] = {}  # keys by what is left of them without one sound
        for term in self._n_passages_of:
            if term.startswith(MARK):
                for hole in _holes(term.removeprefix(MARK)):
                    self._near.setdefault(hole, set()).add(term.removeprefix(MARK))
        self._connection.execute("INSERT INTO passage(passage) VALUES ('optimize')")
        self._connection.commit()

    def _row(self, rowid: int, passage: Passage) -> tuple[int, str, str, str]:
        """`rowid`: the place in `passages`, which need not be the passage's number."""
        title = _title(passage)
        heading, text = words_of(title), words_of(passage.text)
        keys = _keys(heading) + _keys(text)
        self._n_passages_of.update({*heading, *text, *_marked(keys)})
        return rowid, " ".join(heading), " ".join(text), " ".join(keys)

    def is_telling(self, word: str) -> bool:
        """Whether a search for the word, or for its sound, could tell passages apart."""
        return bool(self._told_by([word]) or self._sounds_of([word]))

    def _told_by(self, words: Iterable[str]) -> list[str]:
        """The words worth a search, the rarest first: those no passage holds may have its stem."""
        most = max(FEW, COMMON_SHARE * len(self.passages))
        counts = self._n_passages_of
        spoken = dict.fromkeys(word for word in words if word not in self._function_words)
        return sorted((word for word in spoken if counts[word] <= most), key=lambda w: counts[w])

    def _sounds_of(self, words: Sequence[str]) -> list[str]:
        """The keys worth a search, those of the words before those near them, the rarest first."""
        if not self._with_sounds:
            return []
        counts = self._n_passages_of
        spoken = [word for word in words if word not in self._function_words]
        keys = self._rare(_keys(spoken) + _joined_keys(words))
        # A word of the folder was heard right more often than not: only others are looked around.
        unknown = _keys(word for word in spoken if counts[word] == 0)
        holes = (hole for key in unknown for hole in _holes(key))
        near = self._rare(key for hole in holes for key in sorted(self._near.get(hole, ())))
        return list(dict.fromkeys(keys + near))

    def _rare(self, keys: Iterable[str]) -> list[str]:
        """Each key that stands in some passages and not in many, the rarest first."""
        most = max(FEW, COMMON_SHARE * len(self.passages))
        counts = self._n_passages_of
        rare = (key for key in dict.fromkeys(keys) if 0 < counts[_mark(key)] <= most)
        return sorted(rare, key=lambda key: counts[_mark(key)])

    def find(self, question: str | Sequence[str], n_most: int = 4) -> tuple[Hit, ...]:
        """The passages that are about a question, best first; none for what is said in passing.

        Arguments and Raises: as `search`.
        """
        hits, words = self.search(question, n_most), _words(question)
        # FTS5's inverse document frequency, and its floor, of a word that one passage holds.
        n_passages = max(LEAST_ROWS, len(self.passages))
        unit = max(1e-6, log(n_passages - 0.5) - log(1.5))
        n_words = max(1, len(self._told_by(words)))
        if not hits or hits[0].score < unit * min(LEAST_SCORE, LEAST_SCORE_PER_WORD * n_words):
            return ()
        return tuple(hit for hit in hits if hit.score >= LEAST_SHARE * hits[0].score)

    def search(self, question: str | Sequence[str], n_most: int = 4) -> tuple[Hit, ...]:
        """The passages that are nearest to a question, best first; none where no word tells.

        question: as it was heard, a text or its words.

        Raises:
            ValueError: n_most is not from 1 to MAX_RESULTS.
        """
        if not 1 <= n_most <= MAX_RESULTS:
            raise ValueError(f"expected 1 to {MAX_RESULTS} results, found {n_most}")
        query = self._query(_words(question))
        if not query:
            return ()
        rows = self._connection.execute(
            "SELECT rowid, bm25(passage, ?, ?, ?) AS score FROM passage WHERE passage MATCH ? "
            "AND rowid < ? ORDER BY score, rowid LIMIT ?",
            (*WEIGHTS, query, len(self.passages), n_most),
        )
        return tuple(Hit(self.passages[rowid], -score) for rowid, score in rows)

    def _query(self, words: Sequence[str]) -> str:
        """Return the query in FTS5's language: any of the rarest words, and of the keys that are
        rare enough.

        Words are quoted: a caller who says "not" or "near" asks for no operator.
        """
        terms = [f'{{heading text}}: "{word}"' for word in self._told_by(words)[:MAX_TERMS]]
        terms += [f'sounds: "{key}"' for key in self._sounds_of(words)[:MAX_TERMS]]
        return " OR ".join(terms)

    def close(self) -> None:
        """Idempotent. Not while a search is under way."""
        self._connection.close()


def _words(question: str | Sequence[str]) -> list[str]:
    return words_of(question if isinstance(question, str) else " ".join(question))


def _title(passage: Passage) -> str:
    """Return what the passage is about: the name of its file, and the headings above it."""
    return f"{PurePosixPath(passage.path).stem} {passage.heading}"


def _keys(words: Iterable[str]) -> list[str]:
    keys = (sound_key(_without_plural(word)) for word in words)
    return [key for key in keys if len(key) >= MIN_KEY_SOUNDS]


def _without_plural(word: str) -> str:
    """A word without an s at its end, which is the sound that is lost and added most."""
    return word[:-1] if len(word) > 3 and word[-1] == "s" != word[-2] else word


def _joined_keys(words: Sequence[str]) -> list[str]:
    """Return the keys of each two neighbours as one word: "re fund" was one."""
    pairs = zip(words, words[1:], strict=False)
    return _keys(first + second for first, second in pairs)


def _holes(key: str) -> set[str]:
    """A key, and what is left of a long one without each of its sounds.

    Two keys that share one of these differ in one sound: lost, added or taken for another.
    Source: Wolf Garbe's symmetric delete (SymSpell), 2012.
    """
    if len(key) < MIN_NEAR_SOUNDS:
        return {key}
    return {key, *(key[:place] + key[place + 1 :] for place in range(len(key)))}


def _mark(key: str) -> str:
    """A key in a table that holds words too: no word has a space."""
    return f"{MARK}{key}"


def _marked(keys: Iterable[str]) -> list[str]:
    return [_mark(key) for key in keys]
