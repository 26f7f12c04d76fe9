"""Numbers of a command line that are no numbers, or out of range."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from clients.arguments import number


@pytest.mark.parametrize("text", ["0", "-0.1", "nan", "inf", "-inf", "soon"])
def test_what_is_no_length_of_time_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(ArgumentTypeError) as refused:
        number("seconds", above=0.0)(text)
    assert str(refused.value) == f"expected a number of seconds above 0, found {text!r}"
