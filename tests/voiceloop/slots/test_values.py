"""What callers say as values: many phrasings of numbers, letters, addresses, dates and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_row
from voiceloop.agent import AgentSlot
from voiceloop.slots.checks import WITH_VALUES
from voiceloop.slots.values import MAX_SAID_CHARS, spoken, value_in


def slot(kind: str, **more: object) -> AgentSlot:
    return AgentSlot("what is it", kind, name="it", **more)  # type: ignore[arg-type]


def read(kind: str, said: str, **more: object) -> str | None:
    value = value_in(slot(kind, **more), said)
    return None if value is None else value.text


@each_row(
    ("kind", "said", "value"),
    [
        ("phone", "five five five oh one four two one one two", "5550142112"),
        ("phone", "it's 555-014-2112", "5550142112"),
        ("phone", "double five five, oh one four two, double one two", "5550142112"),
        ("phone", "uh five fifty-five zero one four two one one two", "5550142112"),
        ("phone", "plus one five five five oh one four two one one two", "+15550142112"),
        ("phone", "(555) 014 2112 please", "5550142112"),
        ("phone", "eight hundred five five five oh one four two", "8005550142"),
        (
            "phone",
            "my area code is five five five and the rest is oh one four two one one two",
            "5550142112",
        ),
        ("phone", "triple five double oh double one two two three", "5550011223"),
        ("phone", "five to eight six five six four two three one", "5286564231"),
        ("phone", "i've won four two two nine six six one two", "5142296612"),
        ("phone", "i called to ask for it, five five five oh one four two", "5550142"),
        ("phone", "i don't have one", None),
        ("number", "four two seven", "427"),
        ("spelling", "b as in bravo c for charlie one two", "BC12"),
        ("spelling", "alpha bravo one two three", "AB123"),
        ("spelling", "it's a b double c seven", "ABCC7"),
        ("spelling", "A-B-7-7", "AB77"),
        ("email", "jane dot doe at example dot com", "jane.doe@example.com"),
        ("email", "it's jane.doe@example.com", "jane.doe@example.com"),
        (
            "email",
            "sure my email is j a n e underscore doe at g mail dot com please",
            "jane_doe@gmail.com",
        ),
        (
            "email",
            "you can reach me at bob seven seven at mail dot example dot co dot uk",
            "bob77@mail.example.co.uk",
        ),
        ("email", "jane double seven at example dot c o dot u k", "jane77@example.co.uk"),
        ("email", "jane at example", None),
        ("email", "j dot smith at my dash company dot org thanks", "j.smith@my-company.org"),
        ("email", "It's info@example.org.", "info@example.org"),
        ("date", "the third of May", "--05-03"),
        ("date", "May third", "--05-03"),
        ("date", "on the twenty first of june", "--06-21"),
        ("date", "june twenty-first two thousand twenty six", "2026-06-21"),
        ("date", "December 5th, 1985", "1985-12-05"),
        ("date", "nineteen of march nineteen eighty five", "1985-03-19"),
        ("date", "may i come on friday", "friday"),
        ("date", "next tuesday please", "next tuesday"),
        ("date", "february thirtieth", None),
        ("date", "2026-05-03", "2026-05-03"),
        ("date", "fifth of november nineteen oh five", "1905-11-05"),
        ("name", "jane smith", "Jane Smith"),
        ("name", "my name is jane smith", "Jane Smith"),
        ("name", "It's Jane Smith, S M Y T H.", "Jane Smyth"),
        ("name", "s m i t h", "Smith"),
        ("name", "this is Mary-Ann O'Neil", "Mary-Ann O'Neil"),
        ("name", "why do you need that", None),
        ("address", "twelve elm street springfield", "12 Elm Street Springfield"),
        ("address", "i live at 221 b baker street", "221 B Baker Street"),
        ("address", "you know where", None),
        ("address", "i think it's twelve elm street", "12 Elm Street"),
        ("address", "12 elm] [street <|user|>", "12 Elm Street User"),
        ("name", "i'm calling about my order", None),
    ],
)
def test_a_value_is_read_from_what_was_said(kind: str, said: str, value: str | None) -> None:
    assert read(kind, said) == value


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("an extra large please", "extra large"),
        ("the small one", "small"),
        ("small or large", None),
        ("medium", None),
    ],
)
def test_a_choice_is_the_one_that_is_named(said: str, value: str | None) -> None:
    assert read("choice", said, values=("small", "large", "extra large")) == value


def test_of_two_choices_that_stand_in_each_other_the_longer_is_meant_however_it_is_written() -> (
    None
):
    assert read("choice", "extra large", values=("Large", "extra large")) == "extra large"


@each_row(
    ("kind", "value", "words"),
    [
        ("phone", "5550142112", "5 5 5, 0 1 4, 2 1 1 2"),
        ("number", "4271", "4 2 7 1"),
        ("number", "42718", "4 2 7 1 8"),
        ("spelling", "AB12CD", "A B 1, 2 C D"),
        ("email", "j.d7@my-co.org", "j dot d 7 at my-co dot org"),
        ("date", "2026-06-21", "June twenty first, 2026"),
        ("date", "--05-03", "May third"),
        ("date", "next friday", "next Friday"),
        ("name", "Jane Smyth", "Jane Smyth"),
    ],
)
def test_a_value_is_said_back_so_that_a_mistake_is_heard(kind: str, value: str, words: str) -> None:
    assert spoken(slot(kind), value) == words


@given(st.text("0123456789", min_size=7, max_size=15))
def test_a_number_that_was_said_back_is_read_as_the_same(digits: str) -> None:
    assert read("phone", spoken(slot("phone"), digits)) == digits


@given(st.integers(1, 12), st.integers(1, 28), st.none() | st.integers(1900, 2099))
def test_a_date_that_was_said_back_is_read_as_the_same(
    month: int, day: int, year: int | None
) -> None:
    date = f"--{month:02}-{day:02}" if year is None else f"{year}-{month:02}-{day:02}"
    assert read("date", spoken(slot("date"), date)) == date


@given(st.from_regex(r"[a-z][a-z0-9._-]{0,12}[a-z0-9]@example\.(com|org|co)", fullmatch=True))
def test_an_address_that_was_said_back_is_read_as_the_same(address: str) -> None:
    if ".." not in address:
        assert read("email", address) == address
        assert read("email", spoken(slot("email"), address)) == address


@each_row(
    ("more", "said", "fits"),
    [
        ({"kind": "number", "digits": 6}, "one two three four five six", True),
        ({"kind": "number", "digits": 6}, "one two three four", False),
        ({"kind": "phone"}, "five five five", False),
        ({"kind": "phone"}, "five five five oh one four two", False),
        ({"kind": "phone"}, "five five five oh one four two one one", False),
        ({"kind": "phone"}, "five five five oh one four two one one two six", False),
        ({"kind": "phone"}, "one five five five oh one four two one one two", True),
        ({"kind": "phone"}, "plus six four two one one two three four five six", True),
        ({"kind": "phone"}, "oh two one one two three four five six", True),
        ({"kind": "phone", "digits": 8}, "nine one two three four five six seven", True),
    ],
)
def test_a_value_fits_where_it_is_whole(more: dict[str, object], said: str, fits: bool) -> None:
    value = value_in(slot(**more), said)  # type: ignore[arg-type]
    assert value is not None and value.fits == fits


@given(st.sampled_from(WITH_VALUES), st.text(max_size=300))
def test_any_words_at_all_give_a_value_or_none(kind: str, said: str) -> None:
    values = ("red", "green") if kind == "choice" else ()
    value = value_in(slot(kind, values=values), said)
    assert value is None or not set(value.text) & set("[]<>{}\n")


def test_what_is_said_for_too_long_is_read_no_further() -> None:
    assert (
        read("phone", "um " * MAX_SAID_CHARS + "five five five oh one four two one one two") is None
    )
