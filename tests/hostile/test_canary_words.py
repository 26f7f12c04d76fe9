"""What callers, authors and services say, and the keys, stay out of what is told of failures.

A sample; `python -m benchmarks.hostile --part words --check` tries all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.hostile.canary_words import FAILURES, Leaks, through_services
from voiceloop.errors import BackendError
from voiceloop.log_form import traced


def sample() -> dict[int, str]:
    """The first of each lane and every fourteenth."""
    lanes = {failure.lane: number for number, failure in reversed(list(enumerate(FAILURES)))}
    return {n: FAILURES[n].name for n in sorted({*lanes.values(), *range(0, len(FAILURES), 14)})}


@pytest.mark.call(seconds=20)
async def test_no_failure_tells_what_was_said_or_a_key(tmp_path: Path) -> None:
    leaks, chosen = Leaks(), {number: FAILURES[number] for number in sample()}
    await through_services(chosen, leaks, tmp_path / "log")
    assert (leaks.found, leaks.missed) == ({}, [])
    assert len(chosen) > 20


def test_an_exception_is_logged_by_its_kind_and_frames() -> None:
    said = "".join(("An", "na"))  # for the frames hold the lines of the code

    def lookup() -> None:
        try:
            raise KeyError(said)
        except KeyError as error:
            raise ExceptionGroup(said, [ValueError(said), OSError(13, "denied")]) from error

    try:
        lookup()
    except ExceptionGroup as error:
        told = traced(error)
    assert said not in told
    assert all(kind in told for kind in ("KeyError", "ExceptionGroup", "ValueError", "in lookup"))
    assert "PermissionError: [Errno 13] denied" in told  # the system's own words
    assert "its end" in traced(BackendError("expected the reply to its end"))
