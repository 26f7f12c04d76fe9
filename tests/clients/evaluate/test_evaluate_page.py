"""The page EVALUATE.md says what the command does: its example is read, its keys are all there."""

from __future__ import annotations

import re
from pathlib import Path

from clients.evaluate.scenario import (
    SCENARIO_KEYS,
    TURN_KEYS,
    Budgets,
    ExpectedCall,
    load_scenarios,
)

PAGE = (Path(__file__).resolve().parents[3] / "voiceloop" / "docs" / "EVALUATE.md").read_text(
    "utf-8"
)
[EXAMPLE] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_is_a_file_of_scenarios(tmp_path: Path) -> None:
    path = tmp_path / "scenarios.toml"
    path.write_text(EXAMPLE, encoding="utf-8")
    file = load_scenarios(path)
    order, hours = file.scenarios
    assert file.budgets == Budgets(600.0, 1200.0, 1500.0)
    assert order.turns[0].expected.calls == (ExpectedCall("place_order", {"item": "scone"}),)
    assert order.turns[1].when and order.judge and order.most_turns == 4
    assert set(file.results) == {"place_order"} and len(hours.turns) == 2


def test_every_key_is_explained() -> None:
    explained = set(re.findall(r"`(\w+)`", PAGE))
    assert (SCENARIO_KEYS | TURN_KEYS) - {"name", "turns"} <= explained
