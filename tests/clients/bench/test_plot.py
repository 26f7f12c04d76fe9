"""The plot of percentiles: lengths tell the values."""

from __future__ import annotations

from clients.bench.plot import WIDTH, range_plot


def test_the_median_stands_where_its_value_is_on_an_axis_from_zero() -> None:
    low, high, *_ = range_plot([("low", [50.0] * 9), ("high", [0.0, 100.0, 100.0])])
    assert low.index("●") - low.index("│") - 1 == WIDTH // 2
    assert high.rstrip().endswith("●") and high.count("─") + high.count("━") == WIDTH - 1


def test_the_middle_is_told_from_the_range() -> None:
    row = range_plot([("gap", [float(value) for value in range(1000)])])[0]
    assert row.startswith("gap │─") and row.endswith("─") and "━●━" in row


def test_a_row_without_a_value_says_so_and_none_at_all_is_no_plot() -> None:
    assert range_plot([("a", [1.0]), ("b", [])])[1] == "b │ nothing measured"
    assert range_plot([("b", [])]) == []
