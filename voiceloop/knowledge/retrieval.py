"""The retrieval of one session: its searches while the caller speaks, and what each turn ends with.

Owns the tasks of these searches and how long each may take. What is due and when it is settled is
`prefetch.py`'s to say. A search that is late, fails or is refused costs the turn its passages and
nothing else. Looked up when the reply begins is what was not spoken, and so could not be searched
for ahead, within LOOK_UP_MS; and the last words, where they came as the turn ended, within
LAST_WORDS_MS, and only in what is searched here: for a service no spoken turn waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from voiceloop.errors import VoiceLoopError
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.placement import Notes, notes_of
from voiceloop.knowledge.prefetch import GRACE_MS, Phase, Prefetch, Retrieved, Search
from voiceloop.knowledge.retriever import Retriever
from voiceloop.knowledge.words import words_of
from voiceloop.telemetry.record import Lookup

log = logging.getLogger(__name__)

N_PASSAGES = 4  # searched for; how many of them the model is given, their length decides
# As long as the least time between two searches: a slower one would only find what is outdated.
DEADLINE_MS = 150.0
# For what was not spoken, where the search is part of the gap: a tenth of what a caller bears.
LOOK_UP_MS = 50.0
# For the last words: a folder's search takes a millisecond, and others may be before it.
LAST_WORDS_MS = 10.0


@dataclass(frozen=True, slots=True)
class Settled:
    """The passages or answer of a turn, and how they came about."""

    notes: Notes
    retrieved: Retrieved

    @property
    def at_s(self) -> float:
        """Return when it was settled, on the session's clock."""
        assert self.retrieved.settled_ms is not None
        return self.retrieved.settled_ms / 1000.0

    @property
    def answer(self) -> str | None:
        """Return what is said in the model's place."""
        return _answer_in(self.retrieved)

    @property
    def passages(self) -> tuple[Passage, ...] | None:
        """Return what was found, the best first; None where the search failed."""
        return _passages_in(self.retrieved)

    def lookup(self, decided_s: float | None) -> Lookup:
        """Return the lookup for the turn's record. decided_s: as `Retrieved.fate`."""
        found = self.retrieved
        fate = found.fate(None if decided_s is None else 1000.0 * decided_s)
        return Lookup(
            fate.value,
            found.n_searches,
            len(self.notes.sources),
            round(found.searched_ms, 2),
            round(found.waited_ms, 2),
        )


class Retrieval:
    """The retrieval for one caller at a time. clock: in seconds, monotonic. deadline_ms: of one
    search.

    looks_ahead: words are searched while they are said; else each turn is looked up at its end,
    within look_up_ms.
    """

    def __init__(
        self,
        retriever: Retriever,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float],
        *,
        looks_ahead: bool = True,
        n_passages: int = N_PASSAGES,
        deadline_ms: float = DEADLINE_MS,
        look_up_ms: float = LOOK_UP_MS,
    ) -> None:
        self.looks_ahead = looks_ahead
        self._retriever = retriever
        self._tasks = tasks
        self._clock = clock
        self._n_passages = n_passages
        self._deadline_ms = deadline_ms
        self._look_up_ms = look_up_ms
        self._prefetch = Prefetch(retriever.is_telling)
        self._said_before: tuple[str, ...] = ()
        self._searching: asyncio.Task[None] | None = None
        self._grace: asyncio.TimerHandle | None = None
        self._waiting: Callable[[], None] | None = None  # for the pause's search

    @property
    def retrieved(self) -> Retrieved:
        """Return what the open turn's searches came to until now, and what they cost."""
        return self._prefetch.retrieved

    @property
    def has_words(self) -> bool:
        """Whether words of the open turn have been told, so that it need not be looked up."""
        return bool(self._prefetch.heard)

    # --- while the caller speaks ---

    def begin_turn(self, said_before: str = "") -> None:
        """Another turn of the caller begins: what was found for the last one is no longer told.

        said_before: words of the turn that nobody has answered, which are searched for as well.
        """
        self._stop()
        self._said_before = tuple(said_before.split())
        self._prefetch = Prefetch(self._retriever.is_telling)

    def observe_words(
        self, stable: tuple[str, ...], unstable: tuple[str, ...], *, full: bool
    ) -> None:
        """The open turn's words so far; full: the caller pauses, and these are all of them."""
        if not self.looks_ahead:
            return
        words = self._said_before + (stable + unstable if full else stable)
        # After a pause, stable words that the pause was weighed with may be told: nothing new.
        known = self._prefetch.heard if full else self._prefetch.heard[: len(words)]
        if self._prefetch.phase is not Phase.LISTENING and words != known:
            self._prefetch.resume()
            self._stop_grace()
            self._waiting = None
        if full:
            search = self._prefetch.observe_quiet(words, self._now_ms())
            self._watch_grace()
        else:
            search = self._prefetch.observe_words(words, self._now_ms())
        if search is not None:
            self._begin(search)

    def when_settled(self, words: tuple[str, ...], do: Callable[[], None]) -> None:
        """Now, or once the search for the words of this pause is done, within GRACE_MS.

        Never where more words come before, or the turn is answered.
        """
        if self._prefetch.phase is Phase.LISTENING:
            self.observe_words((), words, full=True)  # they were not told as a pause's yet
        if self._prefetch.phase is Phase.CLOSING:
            self._waiting = do
        else:
            do()

    def answer(self, turn: str) -> str | None:
        """Return what is said to these words in the model's place, as far as is known by now."""
        found = self._prefetch.retrieved
        is_to_these = words_of(" ".join(found.words)) == words_of(turn)
        return _answer_in(found) if is_to_these else None

    def passages(self, turn: str) -> tuple[Passage, ...] | None:
        """Return what was found for these words, the best first; None where that is not known by
        now.
        """
        found = self._prefetch.retrieved
        if self._prefetch.finds_nothing(turn):
            return ()
        is_to_these = words_of(" ".join(found.words)) == words_of(turn)
        return _passages_in(found) if is_to_these else None

    def settle(self) -> Settled:
        """Return what the reply to the open turn is given; from now on the same until words
        come.
        """
        self._waiting = None
        retrieved = self._prefetch.freeze(self._now_ms())
        return Settled(notes_of(retrieved.hits), retrieved)

    def owes(self, words: tuple[str, ...]) -> bool:
        """Whether the last words of the open turn are to be looked up.

        Their search has had no time yet, and is one that will not take long.
        """
        if not self.looks_ahead or not self._retriever.is_local:
            return False
        return self._prefetch.owes(self._said_before + words, self._now_ms(), LAST_WORDS_MS)

    def close(self) -> None:
        """Idempotent."""
        self._stop()

    def _begin(self, search: Search) -> None:
        """One search at a time: the one before, if it is under way still, was replaced."""
        if self._searching is not None:
            self._searching.cancel()
        self._searching = self._tasks.create_task(
            self._search(self._prefetch, search, self._deadline_ms), name=f"search {search.number}"
        )

    async def _search(self, prefetch: Prefetch, search: Search, deadline_ms: float) -> None:
        """Tells the turn that it was begun for, which may be over by then."""
        try:
            async with asyncio.timeout(deadline_ms / 1000.0):
                hits = await self._retriever.search(
                    search.words,
                    self._n_passages,
                    lambda hits: prefetch.observe_some(search.number, hits, self._now_ms()),
                )
        except TimeoutError:
            log.warning("expected passages in %.0f ms, found none", deadline_ms)
        except VoiceLoopError as error:
            log.warning("a search for passages failed (%s): %s", error.wire_code, error.message)
        except Exception:  # a bug costs a turn its passages, not the call
            log.exception("a search for passages failed")
        else:
            prefetch.observe_hits(search.number, hits, self._now_ms())
            self._go_on(prefetch)
            return
        prefetch.observe_failure(search.number, self._now_ms())
        self._go_on(prefetch)

    def _go_on(self, prefetch: Prefetch) -> None:
        """Go on with what waits for the search of the pause, where that is done."""
        if prefetch is self._prefetch and prefetch.phase is Phase.FROZEN:
            do, self._waiting = self._waiting, None
            if do is not None:
                do()

    def _watch_grace(self) -> None:
        """Settle the turn GRACE_MS from its first quiet window on, where no answer does."""
        if self._grace is None and self._prefetch.phase is Phase.CLOSING:
            prefetch, loop = self._prefetch, asyncio.get_running_loop()
            self._grace = loop.call_later(GRACE_MS / 1000.0, lambda: self._give_up(prefetch))

    def _give_up(self, prefetch: Prefetch) -> None:
        self._grace = None
        prefetch.freeze(self._now_ms())
        self._go_on(prefetch)

    def _stop(self) -> None:
        self._stop_grace()
        self._waiting = None
        if self._searching is not None:
            self._searching.cancel()
            self._searching = None

    def _stop_grace(self) -> None:
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None

    def _now_ms(self) -> float:
        return 1000.0 * self._clock()

    # --- when it is over ---

    async def look_up(self, text: str, before: Settled | None = None) -> Settled:
        """Return what is found for a turn that was not searched for while it was said.

        before: what was found for it without its last words; it stays where nobody answers.
        """
        prefetch = Prefetch(self._retriever.is_telling)
        search = prefetch.observe_quiet(tuple(text.split()), self._now_ms())
        if search is not None and search.words:
            await self._search(
                prefetch, search, self._look_up_ms if before is None else LAST_WORDS_MS
            )
        retrieved = prefetch.freeze(self._now_ms())
        if before is not None:
            retrieved = _with_last_words(before.retrieved, retrieved)
        return Settled(notes_of(retrieved.hits), retrieved)


def _passages_in(found: Retrieved) -> tuple[Passage, ...] | None:
    if not found.hits and (found.n_failures or found.is_late):
        return None
    return tuple(hit.passage for hit in found.hits if not hit.passage.is_answer)


def _answer_in(found: Retrieved) -> str | None:
    return next((hit.passage.text for hit in found.hits if hit.passage.is_answer), None)


def _with_last_words(before: Retrieved, last: Retrieved) -> Retrieved:
    """One retrieval of the two: the last words' where it was answered, else what was before."""
    n_searches = before.n_searches + last.n_searches
    n_failures = before.n_failures + last.n_failures
    if last.words:
        return replace(last, n_searches=n_searches, n_failures=n_failures)
    return replace(
        before, n_searches=n_searches, n_failures=n_failures, is_late=True,
        settled_ms=last.settled_ms,
    )  # fmt: skip
