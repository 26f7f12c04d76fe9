"""Every family that MODELS.md lists: its tokens, its file, its template, its calls, its ends."""

from pathlib import Path

import pytest

from benchmarks.models_people_have import Found, check, table
from tests.engine.families import ROWS, Row

pytest.importorskip("llguidance", reason="the optional package llguidance is not installed")

FOUND: dict[str, Found] = {}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_family_says_what_transformers_says_and_calls_as_its_template_teaches(
    row: Row, tmp_path: Path
) -> None:
    found = FOUND[row.name] = check(row, tmp_path)
    assert found.wrong == []
    assert found.is_bound == bool(row.called)


def test_the_page_has_the_table_that_these_tests_made() -> None:
    if len(FOUND) < len(ROWS):
        pytest.skip("only some of the families were checked")
    page = Path(__file__).parents[2] / "voiceloop" / "MODELS.md"
    assert table(FOUND.values()) in page.read_text(encoding="utf-8")
