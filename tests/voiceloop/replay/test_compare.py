"""Two runs of a call: which turns are the same, what differs, and the bounds of chance."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from voiceloop.replay.compare import Comparison, bootstrap, compare, wilson


def turn(end_ms: float, heard: str, said: str = "Sure.", **fields: Any) -> dict[str, Any]:
    marks = {"speech_end": end_ms}
    return {"heard": heard, "said": said, "marks_ms": marks, "at_ms": end_ms + 2000, **fields}


def notes(*turns: dict[str, Any], calls: Any = ()) -> dict[str, Any]:
    return {"turns": list(turns), "calls": list(calls)}


def test_a_run_differs_from_itself_in_nothing() -> None:
    one = notes(turn(1000, "hello", gap_ms=200.0), turn(9000, "cake please", gap_ms=300.0))
    told = Comparison(compare("a", one, one)).told()
    assert told["any"]["n_differ"] == 0
    assert told["gap"] == {"n": 2, "median_ms": 0.0, "low_ms": 0.0, "high_ms": 0.0}
    assert told["differing"] == []


def test_what_differs_is_named_turn_by_turn() -> None:
    called = {"name": "book", "arguments": "{}", "at_ms": 9500.0}
    before = notes(turn(1000, "hello"), turn(9000, "a table", gap_ms=200.0), calls=[called])
    after = notes(turn(1100, "hullo", cut="hard"), turn(9050, "a table", "No.", gap_ms=260.0))
    comparison = Comparison(compare("a", before, after))
    counted = {name: comparison.share(name).n_differ for name in ("words", "cuts", "replies")}
    assert counted == {"words": 1, "cuts": 1, "replies": 1}
    assert comparison.share("tools").n_differ == 1
    assert comparison.gap.median_ms == 60.0
    first, second = comparison.told()["differing"]
    assert first["words"] == ("hello", "hullo")
    assert second["tools"] == ([["book", "{}"]], [])


def test_a_turn_that_only_one_run_has_differs() -> None:
    before, after = notes(turn(1000, "hello")), notes(turn(1000, "hello"), turn(5000, "cake"))
    comparison = Comparison(compare("a", before, after))
    assert [pair.before is None for pair in comparison.pairs] == [False, True]
    assert comparison.share("any").n_differ == 1


@given(n=st.integers(1, 500), share=st.floats(0.0, 1.0))
def test_bounds_hold_the_share_and_narrow_with_more_turns(n: int, share: float) -> None:
    n_differ = round(share * n)
    few, many = wilson(n_differ, n), wilson(100 * n_differ, 100 * n)
    assert few.low <= n_differ / n + 1e-4
    assert few.high >= n_differ / n - 1e-4
    assert many.high - many.low <= few.high - few.low


@given(st.lists(st.floats(-500.0, 500.0), min_size=1, max_size=50))
def test_the_median_lies_within_its_bounds(values: list[float]) -> None:
    found = bootstrap(values)
    assert found.low_ms is not None and found.high_ms is not None and found.median_ms is not None
    assert found.low_ms <= found.median_ms + 0.1
    assert found.high_ms >= found.median_ms - 0.1
