"""A table of rows in one test fails as a test each would, and names every row that did."""

from __future__ import annotations

import pytest

from tests.tables import each_row


def test_every_row_is_tried_and_each_that_fails_is_named() -> None:
    tried = []

    @each_row(("a", "b"), [(1, 1), (1, 2), (3, 4)])
    @each_row("c", "xy")
    def is_equal(a: int, b: int, c: str) -> None:
        tried.append((a, b, c))
        assert a == b

    with pytest.raises(ExceptionGroup, match="of 3 rows 2 failed") as failed:
        is_equal()
    assert len(tried) == 6
    assert "'a': 3, 'b': 4" in failed.value.exceptions[1].__notes__[0]


@each_row("row", [1, 2])
async def test_a_coroutine_is_awaited_and_fixtures_are_given(row: int, tmp_path: object) -> None:
    assert row and tmp_path


def test_a_table_that_tries_nothing_passes_nowhere() -> None:
    with pytest.raises(ValueError, match="expected rows of a, found none"):
        each_row("a", [])

    @each_row("a", [1, 2])
    def is_skipped(a: int) -> None:
        pytest.skip("not here")

    with pytest.raises(ValueError, match="expected a row that is tried, found a skip: not here"):
        is_skipped()
