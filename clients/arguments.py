"""Arguments of a command line: the server that is meant, and numbers.

A number says what was expected and what was found; it is made for ``type=`` of argparse, which
turns the error into its own message and exit code 2. Imports nothing heavy: ``voiceloop --help``
reads it.
"""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable

DEFAULT_URL = "ws://127.0.0.1:8080/v1/realtime"  # a server of our own, as `serve` opens it


def whole_number(at_least: int | None = None, at_most: int | None = None) -> Callable[[str], int]:
    """An integer within these bounds, which belong to it."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not _is_within(value, at_least, at_most):
            bounds = _bounds(at_least, at_most)
            raise ArgumentTypeError(f"expected a whole number{bounds}, found {text!r}")
        return value

    return read


def number(
    unit: str, *, above: float | None = None, at_least: float | None = None
) -> Callable[[str], float]:
    """A finite number in ``unit``, greater than ``above`` or no less than ``at_least``."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        is_low = above is not None and value <= above
        if not math.isfinite(value) or is_low or not _is_within(value, at_least, None):
            bounds = f" above {above:g}" if above is not None else _bounds(at_least, None)
            raise ArgumentTypeError(f"expected a number of {unit}{bounds}, found {text!r}")
        return value

    return read


def _is_within(value: float, at_least: float | None, at_most: float | None) -> bool:
    return (at_least is None or value >= at_least) and (at_most is None or value <= at_most)


def _bounds(at_least: float | None, at_most: float | None) -> str:
    if at_least is not None and at_most is not None:
        return f" of {at_least:g} to {at_most:g}"
    return "" if at_least is None else f" of at least {at_least:g}"
