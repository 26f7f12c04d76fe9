"""The timing of searches while the caller speaks, and the passages that the turn ends up with.

Owns the states of one turn's retrieval. It is told of words as they firm up and of the first quiet
window; it says what to search for and takes what was found. From the freeze on nothing changes any
more, for what is made of the passages in the pause must still fit when the turn ends. Pure: the
clock is passed in, and searching is somebody else's work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.words import words_of

# A caller says a word every 330 ms: more searches than this would find the same again.
INTERVAL_MS = 150.0
MIN_NEW_WORDS = 2  # of content: one alone seldom changes what is found
# From the first quiet window to the freeze: the recognizer's last words come within this, and a
# search takes some 5 ms; a preemptive reply begins at 60 ms.
GRACE_MS = 20.0


class Phase(Enum):
    """The phase of one turn: words come, the last search is under way, the passages are settled."""

    LISTENING = "listening"
    CLOSING = "closing"
    FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Search:
    """One to be made. number: from 1 within the turn; words: of the caller, as heard so far."""

    number: int
    words: tuple[str, ...]


class Fate(Enum):
    """The outcome of a turn's retrieval."""

    NONE = "none"  # nothing to search for, or nothing that is about it
    HIDDEN = "hidden"  # passages, settled before the turn had ended
    WAITED = "waited"  # passages that the reply had to wait for
    LATE = "late"  # the last search was not done in time
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The passages that a turn was answered with, and their cost.

    words: what the passages were searched with. n_searches: begun in the turn. n_failures: of
    these, failed or too late. is_late: the search for the turn's last words was not done by the
    freeze, so the passages, if any, are those of words before. searched_ms: of the search that
    counted, from its request to its answer. waited_ms: from the first quiet window to that answer;
    0 where it came before. settled_ms: the time of the freeze, on the clock passed in.
    """

    hits: tuple[Hit, ...] = ()
    words: tuple[str, ...] = ()
    n_searches: int = 0
    n_failures: int = 0
    is_late: bool = False
    searched_ms: float = 0.0
    waited_ms: float = 0.0
    settled_ms: float | None = None

    def fate(self, decided_ms: float | None) -> Fate:
        """decided_ms: when the turn was known to have ended; None: it was not spoken."""
        if self.is_late:
            return Fate.LATE
        if not self.hits:
            return Fate.FAILED if self.n_failures else Fate.NONE
        if decided_ms is None or self.settled_ms is None or self.settled_ms > decided_ms:
            return Fate.WAITED
        return Fate.HIDDEN


class Prefetch:
    """The retrieval of one turn. is_telling: whether a word could find anything at all.

    One search at a time is under way: words that come meanwhile wait for its answer, so a slow
    store is asked seldom rather than piled up on.
    """

    def __init__(self, is_telling: Callable[[str], bool]) -> None:
        self._is_telling = is_telling
        self._phase = Phase.LISTENING
        self._heard: tuple[str, ...] = ()  # told last
        self._asked: tuple[str, ...] = ()  # searched last, as content; () where it must be again
        self._searched: tuple[str, ...] = ()  # searched last, whatever came of it
        self._under_way: Search | None = None
        self._began_ms = float("-inf")
        self._quiet_ms: float | None = None
        self._retrieved = Retrieved()

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def heard(self) -> tuple[str, ...]:
        """The words that it was told of last."""
        return self._heard

    @property
    def retrieved(self) -> Retrieved:
        """Return what was found until now; from the freeze on, what the turn is answered with."""
        return self._retrieved

    def observe_words(self, stable: tuple[str, ...], now_ms: float) -> Search | None:
        """The caller's stable words so far: the search that is due, if one is."""
        if self._phase is not Phase.LISTENING:
            return None
        self._heard = stable
        content = self._content(stable)
        n_new = sum(word not in self._asked for word in content)
        n_gone = sum(word not in content for word in self._asked)
        if n_new + n_gone < MIN_NEW_WORDS or now_ms - self._began_ms < INTERVAL_MS:
            return None
        return self._begin(content, now_ms)

    def observe_quiet(self, words: tuple[str, ...], now_ms: float) -> Search | None:
        """The first quiet window, with all words heard: the last search, where they need one."""
        if self._phase is Phase.FROZEN:
            return None
        self._heard = words
        if self._quiet_ms is None:
            self._quiet_ms = now_ms
        self._phase = Phase.CLOSING
        content = self._content(words)
        if content == self._asked:
            self._settle_if_idle(now_ms)
            return None
        return self._begin(content, now_ms)

    def resume(self) -> None:
        """The caller goes on: what was found is a beginning, and more words may be searched."""
        self._phase = Phase.LISTENING
        self._quiet_ms = None

    def observe_hits(self, number: int, hits: tuple[Hit, ...], now_ms: float) -> None:
        """A search was answered. One that is late, or was replaced, is passed over."""
        search = self._under_way
        if search is None or search.number != number:
            return
        self._under_way = None
        if self._phase is Phase.FROZEN:
            return
        self._take(search, hits, now_ms)
        if self._phase is Phase.CLOSING:
            self._settle_if_idle(now_ms)

    def observe_some(self, number: int, hits: tuple[Hit, ...], now_ms: float) -> None:
        """One of a search's sources has answered: it counts from now on, and others may yet."""
        search = self._under_way
        if search is not None and search.number == number and self._phase is not Phase.FROZEN:
            self._take(search, hits, now_ms)

    def observe_failure(self, number: int, now_ms: float) -> None:
        """A search failed: what was found before stays, and its words may be searched again."""
        if self._under_way is None or self._under_way.number != number:
            return
        self._under_way = None
        self._asked = ()
        if self._phase is Phase.FROZEN:
            return
        n_failures = self._retrieved.n_failures + 1
        self._retrieved = replace(self._retrieved, n_failures=n_failures)
        if self._phase is Phase.CLOSING:
            self.freeze(now_ms)

    def freeze(self, now_ms: float) -> Retrieved:
        """Return what the turn is answered with, from now on; idempotent.

        Due GRACE_MS after the first quiet window, or where a reply is begun before.
        """
        if self._phase is not Phase.FROZEN:
            self._phase = Phase.FROZEN
            search = self._under_way
            is_late = search is not None and self._retrieved.words != search.words
            if search is not None:
                self._asked = ()  # its answer will be passed over: if the caller goes on, ask again
            self._retrieved = replace(self._retrieved, is_late=is_late, settled_ms=now_ms)
        return self._retrieved

    def owes(self, words: tuple[str, ...], now_ms: float, most_ms: float) -> bool:
        """Whether there is nothing for these words, the turn's last, because their search was not
        begun, or not `most_ms` ago.
        """
        content = self._content(words)
        if not content or (
            self._retrieved.words and content == self._content(self._retrieved.words)
        ):
            return False
        return content != self._searched or now_ms - self._began_ms < most_ms

    def finds_nothing(self, text: str) -> bool:
        """Whether these are words of which none is in any document, so that nobody searches."""
        return bool(text.strip()) and not self._content((text,))

    def _content(self, words: tuple[str, ...]) -> tuple[str, ...]:
        plain = words_of(" ".join(words))
        return tuple(dict.fromkeys(word for word in plain if self._is_telling(word)))

    def _begin(self, content: tuple[str, ...], now_ms: float) -> Search | None:
        if self._under_way is not None and self._phase is Phase.LISTENING:
            return None
        number = self._retrieved.n_searches + 1
        self._asked = self._searched = content
        self._began_ms = now_ms
        self._retrieved = replace(self._retrieved, n_searches=number)
        self._under_way = Search(number, self._heard)
        return self._under_way

    def _take(self, search: Search, hits: tuple[Hit, ...], now_ms: float) -> None:
        self._retrieved = replace(
            self._retrieved,
            hits=hits,
            words=search.words,
            searched_ms=now_ms - self._began_ms,
            waited_ms=0.0 if self._quiet_ms is None else now_ms - self._quiet_ms,
        )

    def _settle_if_idle(self, now_ms: float) -> None:
        if self._under_way is None:
            self.freeze(now_ms)
