"""The key of a word's sound: which words share it, and which must not."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.knowledge.sounds import sound_key


@each_row(
    "said, heard",
    [
        ("refund", "refined"),
        ("knight", "night"),
        ("suede", "swayed"),
        ("phone", "fawn"),
        ("voucher", "fowcher"),
        ("bill", "pill"),
        ("whether", "weather"),
        ("cent", "send"),
        ("résumé", "resume"),
    ],
)
def test_words_that_are_taken_for_each_other_share_a_key(said: str, heard: str) -> None:
    assert sound_key(said) == sound_key(heard) != ""


@pytest.mark.parametrize("one, other", [("refund", "return"), ("lamp", "ramp"), ("12", "21")])
def test_words_that_sound_apart_have_keys_apart(one: str, other: str) -> None:
    assert sound_key(one) != sound_key(other)


@given(st.text(max_size=100))
@example("\U0001d434")  # a letter of mathematics, which is large and has no small form
def test_every_text_has_a_key_no_longer_than_its_letters_allow(text: str) -> None:
    key = sound_key(text)
    assert key == "" or (key.isascii() and key.isalnum())
    # A letter may stand for more ("½", "ﬃ", 18 letters at most), and x for two sounds.
    assert len(key) <= 2 * 18 * 64


def test_a_word_in_other_letters_has_none_and_a_number_is_itself() -> None:
    assert sound_key("часы") == sound_key("時間") == sound_key("") == ""
    assert sound_key("A4") == "a4"
