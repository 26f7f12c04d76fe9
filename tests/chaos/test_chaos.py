"""No fault of the table leaves a caller in silence for good, ends a call, or keeps the server out.

How long each takes is the command's to judge (`python -m tests.chaos.chaos`, all rows, some three
minutes): a machine that runs a test suite is no measure of that. Here a row of each kind is met.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.faults import FAULTS
from tests.chaos.chaos import run

pytest.importorskip("hibari", reason="the embedded extra is not installed")

# Both workers lost, one that hangs, a start that fails, and what a client sends.
ROWS = ["kill both", "stop the engine", "no files", "deep JSON"]


@pytest.mark.call(seconds=40)
@pytest.mark.timeout(300)
def test_a_fault_of_each_kind_is_borne() -> None:
    met = {one.fault: one for one in run(ROWS, seed=0, folder=Path("out"))}
    assert set(ROWS) == set(met) <= {fault.name for fault in FAULTS}
    for one in met.values():
        assert one.lives and one.silent_s is not None and one.ready_s is not None, one
