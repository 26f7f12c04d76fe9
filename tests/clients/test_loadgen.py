"""What the load generator counts as well answered."""

from __future__ import annotations

from clients.call_result import CallResult, TurnResult
from clients.loadgen import Load, LoadResult, figures, goodput_of, print_figures


def turn(gap_ms: float | None, *, cut_in: bool = False) -> TurnResult:
    return TurnResult(
        "t", "hi", "hi", "hello", (), (), 0.0, 1.0, 1.2, 2.0, gap_ms, gap_ms, cut_in,
        False, False, gap_ms is not None, None, None,
    )  # fmt: skip


def call(*turns: TurnResult) -> CallResult:
    return CallResult("slt", "", turns, (), 0, 0)


def test_goodput_leaves_out_late_unanswered_and_cut_turns_and_broken_calls() -> None:
    load = Load(n_calls=2, within_ms=500.0)
    answered = call(turn(300.0), turn(501.0), turn(None), turn(200.0, cut_in=True))
    result = LoadResult((answered,), ("hung up",), elapsed_s=30.0)
    good = goodput_of(load, result, n_turns_a_call=4)
    assert (good.n_good, good.share, good.per_minute) == (1, 1 / 8, 2.0)


def test_the_figures_are_printed_with_their_goodput(capsys) -> None:  # type: ignore[no-untyped-def]
    load = Load(n_calls=1, n_turns=2)
    data = figures(load, LoadResult((call(turn(300.0), turn(900.0)),), (), 10.0))
    print_figures(data)
    shown = capsys.readouterr().out
    assert "goodput: 1 turns within 800 ms and not cut into, 50.0 % of all, 6.0 a minute" in shown
    assert "p99" in shown and "barge in wire" in shown
