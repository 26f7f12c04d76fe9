from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.report.percentiles import Distribution, percentile

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


@given(VALUES, st.floats(0, 100))
def test_percentile_is_numpys_linear_one(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent))
    assert percentile(values, percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_percentile_of_nothing_or_outside_100_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one value"):
        percentile([], 50)
    with pytest.raises(ValueError, match="0 to 100"):
        percentile([1.0], 101)


def test_a_distribution_of_nothing_has_no_figures() -> None:
    nothing = Distribution.of([])
    assert nothing.n == 0
    assert nothing.p50 is None


def test_a_distribution_names_its_figures() -> None:
    d = Distribution.of([float(n) for n in range(101)])
    assert (d.n, d.p50, d.p90, d.p95, d.p99, d.least, d.most) == (101, 50, 90, 95, 99, 0, 100)
