"""Numbers of a command line that are no numbers, or out of range."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from clients.arguments import number, whole_number


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many", "nan", ""])
def test_what_is_no_count_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        whole_number(1)(text)
    assert str(refused.value) == f"expected a whole number of at least 1, found {text!r}"


def test_whole_numbers_within_their_bounds_are_read() -> None:
    assert whole_number(1)("1") == 1
    assert whole_number()("-5") == -5
    assert whole_number(1, 8)("8") == 8
    with pytest.raises(ArgumentTypeError, match="of 1 to 8, found '9'"):
        whole_number(1, 8)("9")


@pytest.mark.parametrize("text", ["0", "-0.1", "nan", "inf", "-inf", "soon"])
def test_what_is_no_length_of_time_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        number("seconds", above=0.0)(text)
    assert str(refused.value) == f"expected a number of seconds above 0, found {text!r}"


def test_finite_numbers_within_their_bounds_are_read() -> None:
    assert number("ms", above=0.0)("0.5") == 0.5
    assert number("ms", at_least=0.0)("0") == 0.0
    with pytest.raises(ArgumentTypeError, match="of ms of at least 0, found '-1'"):
        number("ms", at_least=0.0)("-1")
