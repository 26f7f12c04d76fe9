"""Figures and samples replace what stood between the card's marks."""

from __future__ import annotations

import pytest

from engine.recipes.model_card import CARD, fill, table

FIGURE = {
    "name": "facts", "value": 0.7, "cases": 3, "bar": 0.9, "at_most": False, "holds": False,
}  # fmt: skip


def test_a_missed_bar_is_said_to_be_missed() -> None:
    assert "| facts | 0.700 | 3 | >= 0.9 | **missed** |" in table([FIGURE])
    assert "| facts | 0.700 | 3 |  |  |" in table([FIGURE | {"bar": None}])


def test_only_the_section_changes() -> None:
    card = "before <!-- figures -->old<!-- /figures --> after"
    new = fill(card, "figures", "new")
    assert new == "before <!-- figures -->\nnew\n<!-- /figures --> after"
    assert fill(new, "figures", "new") == new


def test_a_card_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no such section"):
        fill("no marks", "figures", "new")


def test_the_card_has_its_sections() -> None:
    card = CARD.read_text()
    assert all(f"<!-- {part} -->" in card for part in ("figures", "samples"))
