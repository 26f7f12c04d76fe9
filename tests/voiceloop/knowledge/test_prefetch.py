"""Retrieval within one turn: when it searches, what it keeps, and when nothing changes any more."""

from __future__ import annotations

from voiceloop.knowledge.index import Hit
from voiceloop.knowledge.passages import Passage
from voiceloop.knowledge.prefetch import INTERVAL_MS, Phase, Prefetch, Search

FUNCTION_WORDS = ("how", "do", "i", "my", "the", "a")


def prefetch() -> Prefetch:
    return Prefetch(lambda word: word not in FUNCTION_WORDS)


def hits(name: str) -> tuple[Hit, ...]:
    return (Hit(Passage(0, name, "", name), 1.0),)


def said(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def test_two_new_words_of_content_are_searched_and_one_is_not() -> None:
    turn = prefetch()
    assert turn.observe_words(said("how do i return"), 0.0) is None
    assert turn.observe_words(said("how do i return the my"), 10.0) is None
    due = turn.observe_words(said("how do i return my boots"), 20.0)
    assert due == Search(1, said("how do i return my boots"))


def test_searches_are_apart_and_one_is_under_way_at_a_time() -> None:
    turn = prefetch()
    assert turn.observe_words(said("red boots"), 0.0)
    assert turn.observe_words(said("red boots with laces"), 2 * INTERVAL_MS) is None
    turn.observe_hits(1, hits("boots"), 2 * INTERVAL_MS)
    assert turn.observe_words(said("red boots with laces"), 2 * INTERVAL_MS) is not None
    turn.observe_hits(2, hits("laces"), 2 * INTERVAL_MS + 1)
    more = said("red boots with laces and soles")
    assert turn.observe_words(more, 3 * INTERVAL_MS - 1) is None
    assert turn.observe_words(more, 3 * INTERVAL_MS) == Search(3, more)


def test_the_last_words_are_searched_at_the_first_quiet_window() -> None:
    turn = prefetch()
    turn.observe_words(said("return boots"), 0.0)
    turn.observe_hits(1, hits("boots"), 5.0)
    words = said("return boots abroad")
    assert turn.observe_quiet(words, 500.0) == Search(2, words)
    assert turn.phase is Phase.CLOSING
    turn.observe_hits(2, hits("abroad"), 504.0)
    settled = turn.retrieved
    assert (settled.hits, settled.words, settled.waited_ms) == (hits("abroad"), words, 4.0)
    assert turn.phase is Phase.FROZEN


def test_a_search_that_is_late_leaves_what_was_found_before() -> None:
    turn = prefetch()
    turn.observe_words(said("return boots"), 0.0)
    turn.observe_hits(1, hits("boots"), 5.0)
    turn.observe_quiet(said("return boots abroad"), 500.0)
    assert turn.phase is Phase.CLOSING
    turn.freeze(600.0)
    turn.observe_hits(2, hits("abroad"), 600.0)
    settled = turn.freeze(600.0)
    assert settled.hits == hits("boots") and settled.words == said("return boots")
    assert settled.is_late
    assert turn.observe_quiet(said("other words"), 700.0) is None
    assert turn.observe_words(said("quite other words"), 800.0) is None
    assert turn.freeze(600.0) is settled


def test_words_whose_search_was_late_are_searched_again_when_the_caller_goes_on() -> None:
    turn = prefetch()
    turn.observe_quiet(said("return boots"), 0.0)
    assert turn.freeze(600.0).is_late
    turn.observe_hits(1, hits("boots"), 100.0)
    assert turn.retrieved.hits == ()
    turn.resume()
    assert turn.observe_words(said("return boots"), 500.0) == Search(2, said("return boots"))
    turn.observe_hits(2, hits("boots"), 505.0)
    assert turn.observe_quiet(said("return boots"), 900.0) is None
    assert turn.freeze(600.0).hits == hits("boots") and not turn.retrieved.is_late


def test_an_answer_to_a_search_that_was_replaced_is_passed_over() -> None:
    turn = prefetch()
    turn.observe_words(said("return boots"), 0.0)
    assert turn.observe_quiet(said("return boots abroad"), 10.0)
    turn.observe_hits(1, hits("boots"), 12.0)
    assert turn.retrieved.hits == () and turn.phase is Phase.CLOSING
    turn.observe_hits(2, hits("abroad"), 14.0)
    assert turn.retrieved.hits == hits("abroad")


def test_a_search_that_fails_keeps_what_was_found_and_is_made_again_for_more_words() -> None:
    turn = prefetch()
    turn.observe_words(said("return boots"), 0.0)
    turn.observe_hits(1, hits("boots"), 5.0)
    turn.observe_words(said("return boots from norway quickly"), 500.0)
    turn.observe_failure(1, 600.0)  # of one that has been answered: nothing to do
    turn.observe_failure(2, 600.0)
    assert turn.retrieved.hits == hits("boots")
    assert turn.observe_words(said("return boots from norway quickly"), 700.0) is not None
    assert turn.observe_quiet(said("return boots from norway"), 710.0) is not None
    turn.observe_failure(4, 600.0)
    assert turn.phase is Phase.FROZEN and turn.retrieved.hits == hits("boots")
    assert not turn.retrieved.is_late


def test_a_caller_who_goes_on_is_searched_for_again_and_keeps_what_stands() -> None:
    turn = prefetch()
    turn.observe_words(said("return boots"), 0.0)
    turn.observe_hits(1, hits("boots"), 5.0)
    turn.observe_quiet(said("return boots"), 500.0)
    turn.resume()
    assert turn.phase is Phase.LISTENING and turn.retrieved.hits == hits("boots")
    assert turn.observe_words(said("return boots from norway quickly"), 900.0)
    turn.observe_hits(2, hits("norway"), 905.0)
    assert turn.retrieved.hits == hits("norway") and turn.retrieved.waited_ms == 0.0


def test_a_turn_without_words_of_content_searches_nothing() -> None:
    turn = prefetch()
    assert turn.observe_words(said("how do i"), 0.0) is None
    assert turn.observe_quiet(said("how do i"), 100.0) is None
    assert turn.freeze(600.0).n_searches == 0
