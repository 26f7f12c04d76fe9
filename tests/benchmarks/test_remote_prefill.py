"""The benchmark of reading ahead: what its stub makes a caller wait for, what counts as hidden."""

from __future__ import annotations

import pytest

from benchmarks.remote_prefill import VARIANTS, hidden_percent

pytestmark = pytest.mark.virtual_time


def test_hidden_is_the_share_of_the_wait_above_the_floor() -> None:
    found = dict(zip(VARIANTS, ([155.0], [35.0], [5.0]), strict=True))
    assert hidden_percent(found) == pytest.approx(80.0)
    assert hidden_percent({**found, "as it comes": [5.0]}) is None
    assert hidden_percent({**found, "read ahead": []}) is None
