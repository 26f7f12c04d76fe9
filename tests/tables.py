"""Rows of a table that are tried in one test: as a test each would cost more than it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest


def each_row(names: str | tuple[str, ...], rows: Iterable[Any]) -> Callable[[Any], Any]:
    """As `pytest.mark.parametrize`, for rows that take no time and leave nothing to the next.

    Every row is tried, and a failure tells of each that failed.
    """
    named = names.replace(" ", "").split(",") if isinstance(names, str) else names
    table = [dict(zip(named, row if len(named) > 1 else (row,), strict=True)) for row in rows]
    if not table:
        raise ValueError(f"expected rows of {', '.join(named)}, found none")

    @contextmanager
    def noting(row: dict[str, Any], failed: list[BaseException]) -> Iterator[None]:
        try:
            yield
        except pytest.skip.Exception as reason:  # it would hide the rows behind it
            raise ValueError(f"expected a row that is tried, found a skip: {reason}") from None
        except (Exception, SystemExit) as error:
            error.add_note(f"in the row {row!r:.400}")
            failed.append(error)

    def tell(failed: list[BaseException]) -> None:
        if failed:
            raise BaseExceptionGroup(f"of {len(table)} rows {len(failed)} failed", failed)

    def made(test: Callable[..., Any]) -> Callable[..., Any]:
        async def in_turn(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in table:
                with noting(row, failed):
                    await test(**fixtures, **row)
            tell(failed)

        def at_once(**fixtures: Any) -> None:
            failed: list[BaseException] = []
            for row in table:
                with noting(row, failed):
                    test(**fixtures, **row)
            tell(failed)

        all_rows = wraps(test)(in_turn if inspect.iscoroutinefunction(test) else at_once)
        given = inspect.signature(test)
        left = [one for name, one in given.parameters.items() if name not in named]
        all_rows.__signature__ = given.replace(parameters=left)  # type: ignore[attr-defined]
        return all_rows

    return made
