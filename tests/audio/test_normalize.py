"""Normalization: what is spoken, and where each spoken word stands in the source."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.normalize import normalize, number_words, ordinal_words
from tests.tables import each_row


@each_row(
    ("written", "spoken"),
    [
        ("$3.50", "three dollars and fifty cents"),
        ("$1", "one dollar"),
        ("$1,250.00", "one thousand two hundred fifty dollars"),
        ("9:30 am", "nine thirty ay em"),
        ("7 p.m.", "seven pee em"),
        ("7.30pm, 8.05 a.m.", "seven thirty pee em, eight oh five ay em"),
        ("2.75 kg, 13.30 pm", "two point seven five kg, thirteen point three zero pm"),
        ("10:00", "ten o'clock"),
        ("4:05", "four oh five"),
        ("9-5", "nine to five"),
        ("555-0142", "five five five; zero one four two"),
        ("(415) 555-0199", "four one five; five five five; zero one nine nine"),
        ("+1 415 555 0199", "plus one; four one five; five five five; zero one nine nine"),
        ("J-O-N-E-S, a T-shirt", "J O N E S, a T-shirt"),
        ("room 4B, flight BA2490", "room four B, flight BA two four nine zero"),
        ("1/2 cup, 2 3/4, 24/7", "one half cup, two and three quarters, twenty four seven"),
        ("code 55501", "code five five five zero one"),
        ("May 21st, 2026", "May twenty first, twenty twenty six"),
        ("12 oz", "twelve ounces"),
        ("3.5", "three point five"),
        ("20%", "twenty percent"),
        ("Dr. Smith", "Doctor Smith"),
        ("*bold* \U0001f600 move", "bold move"),
        ("no change here, really.", "no change here, really."),
    ],
)
def test_written_forms_are_spelled_as_they_are_said(written, spoken):
    assert " ".join(normalize(written).text.split()) == spoken


def test_numbers_in_words():
    assert number_words(0) == "zero"
    assert number_words(999_999) == ("nine hundred ninety nine thousand nine hundred ninety nine")
    assert [ordinal_words(n) for n in (1, 12, 20, 23)] == [
        "first", "twelfth", "twentieth", "twenty third",
    ]  # fmt: skip


def test_a_replaced_number_counts_as_spoken_only_after_its_last_word():
    text = "It is $3.50 now"
    normalized = normalize(text)
    ends = [
        (match.group(), text[: normalized.source_end(match.end())])
        for match in re.finditer(r"\S+", normalized.text)
    ]
    assert ends == [
        ("It", "It"), ("is", "It is"), ("three", "It is "), ("dollars", "It is "),
        ("and", "It is "), ("fifty", "It is "), ("cents", "It is $3.50"), ("now", text),
    ]  # fmt: skip


@given(st.text(alphabet="aZ 0159.,:$%&-/*\u00e9\u20ac\n'pm", max_size=60))
def test_source_positions_never_go_back_and_reach_the_end(text):
    normalized = normalize(text)
    ends = [normalized.source_end(i) for i in range(len(normalized.text) + 1)]
    assert ends == sorted(ends)
    assert ends[-1] == len(text) or not normalized.text


@pytest.mark.parametrize("text", ["5 m\u0131n", "5 lb\u017f", "Mr\u017f. Lee", "5 m\u0130"])
def test_letters_that_only_look_like_a_unit_are_left_alone(text):
    spoken = normalize(text).text
    assert spoken == text.replace("5", "five")


def test_a_text_of_marks_alone_is_read_once():
    assert normalize("&" * 5_000).text.split() == ["and"] * 5_000
