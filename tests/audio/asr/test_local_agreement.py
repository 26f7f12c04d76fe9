"""LocalAgreement on recorded and random sequences of hypotheses."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.asr.local_agreement import HypothesisWord, LocalAgreement, window_cut

# Written in the manner of a small Whisper on a growing window: it revises commas and last words.
REVISED = [
    "And so",
    "And so my",
    "And so, my fellow",
    "And so, my fellow Americans",
    "And so, my fellow Americans.",
    "And so, my fellow Americans, ask",
    "And so, my fellow Americans, ask not",
    "And so, my fellow Americans, ask not what you",
    "And so, my fellow Americans, ask not what your country",
    "And so, my fellow Americans, ask not what your country can do",
]


def spelled(text):
    return tuple(HypothesisWord(word, tuple(word.encode())) for word in text.split())


def texts(words):
    return [word.text for word in words]


def test_revised_hypotheses_commit_an_unbroken_growing_prefix():
    agreement = LocalAgreement()
    for text in REVISED:
        # The decoder is forced to the committed words, so it gives only what follows.
        before = texts(agreement.committed)
        agreement.observe(spelled(text)[len(agreement.prefix) :])
        assert texts(agreement.committed)[: len(before)] == before
    assert texts(agreement.committed) == (
        "And so my fellow Americans, ask not what your country".split()
    )


def test_leaving_more_words_than_the_window_holds_is_refused():
    agreement = LocalAgreement()
    agreement.accept(spelled("one two"))
    with pytest.raises(ValueError, match="expected 0 to 2 words, found 3"):
        agreement.leave_window(3)


WORDS = st.lists(st.sampled_from(["a", "b", "c.", "d"]), max_size=8)


@settings(max_examples=100)
@given(
    hypotheses=st.lists(st.tuples(WORDS, st.integers(0, 3)), max_size=12),
    n_held_back=st.integers(0, 2),
)
def test_committed_words_are_never_retracted(hypotheses, n_held_back):
    agreement = LocalAgreement(n_held_back)
    committed = []
    for words, n_leave in hypotheses:
        newly = agreement.observe(spelled(" ".join(words)))
        assert texts(agreement.committed) == committed + texts(newly)
        assert texts(newly) + texts(agreement.tail) == words
        committed = texts(agreement.committed)
        agreement.leave_window(min(n_leave, len(agreement.prefix)))
        assert texts(agreement.left_window) + texts(agreement.prefix) == committed


def test_short_window_is_not_cut():
    assert window_cut(["Yes."], [900.0], 9_999.0) is None


def test_window_of_ten_seconds_is_cut_at_the_last_sentence_end():
    words = ["Yes.", "I", "do.", "But"]
    cut = window_cut(words, [500.0, 900.0, 1_400.0, 9_000.0], 10_000.0)
    assert cut is not None
    assert (cut.n_words, cut.at_ms) == (3, 1_400.0)


def test_window_without_sentence_end_is_cut_at_a_word_only_from_fifteen_seconds():
    words, ends_ms = ["and", "then", "we"], [3_000.0, 6_000.0, 9_000.0]
    assert window_cut(words, ends_ms, 14_999.0) is None
    cut = window_cut(words, ends_ms, 15_000.0)
    assert cut is not None
    assert (cut.n_words, cut.at_ms) == (3, 9_000.0)
