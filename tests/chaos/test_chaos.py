"""No fault of the table leaves a caller in silence, ends a call, or keeps the server out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.faults import FAULTS
from tests.chaos.chaos import run

pytest.importorskip("hibari", reason="the embedded extra is not installed")


@pytest.mark.call
@pytest.mark.timeout(300)
def test_each_fault_of_the_table_is_borne_within_its_bars() -> None:
    met = run([], seed=0, folder=Path("out"))
    assert [one.fault for one in met] == [fault.name for fault in FAULTS]
    assert not [one for one in met if one.missed]
