"""Every family that MODELS.md lists: its tokens, its file, its template, its calls, its ends."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.models_people_have import Found, check, table
from engine.engine import Engine
from engine.types import DeviceFault, EngineConfig
from tests.engine.families import ROWS, Row, reference, write_text

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

FOUND: dict[str, Found] = {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_family_says_what_transformers_says_and_calls_as_its_template_teaches(
    row: Row, tmp_path: Path
) -> None:
    found = FOUND[row.name] = check(row, tmp_path)
    assert found.wrong == []
    assert found.is_bound == bool(row.called)


def test_a_family_that_a_gpus_kernels_do_not_run_is_refused_them_by_name_and_runs_by_torch(
    tmp_path: Path,
) -> None:
    pytest.importorskip("triton", reason="the GPU path needs triton")
    row = next(one for one in ROWS if one.name == "Gemma 3")
    reference(row.model, tmp_path, [1, 2, 3], vocab_size=write_text(row, tmp_path))
    config = EngineConfig(device="reference", kv_tokens=512)
    with pytest.raises(DeviceFault, match=r"norms behind attention.*\(Gemma 3\)"):
        Engine.load(tmp_path, config)
    assert Engine.load(tmp_path, replace(config, kernels=False)).runner.layers == "torch"


def test_the_page_has_the_table_that_these_tests_made() -> None:
    if len(FOUND) < len(ROWS):
        pytest.skip("only some of the families were checked")
    page = Path(__file__).parents[2] / "voiceloop" / "docs" / "MODELS.md"
    assert table(FOUND.values()) in page.read_text(encoding="utf-8")
