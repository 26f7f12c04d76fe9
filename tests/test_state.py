"""No class of the call's wings changes more than a reader can hold in mind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state import ROOT, states

# Beyond so many attributes that change nobody can say which of their combinations are legal: such a
# class is two.
MAX_CHANGED = 10
HELD = ("voiceloop/server", "voiceloop/listening", "engine/branch.py")  # the rooms that keep to it
SAMPLE = """
from dataclasses import dataclass
from typing import ClassVar


class Sample:
    kind: ClassVar[str] = "none"

    def __init__(this, size: int) -> None:
        this.size = size
        this.kept, this.total = [], 0

        def later() -> None:
            this.late = True

    def act(this, other) -> None:
        this.total += 1
        this.first, (this.second, *this.rest) = other
        this.noted: int = 1
        for this.index in other:
            del this.gone
        with open(this.size) as this.file:
            this.kept[0] = this.kept.size = 1
        other.elsewhere = this.size

        class Inner:
            def __init__(this) -> None:
                this.own = 1

    @staticmethod
    def make(other) -> None:
        return None


@dataclass
class Fields:
    held: int
    turned: bool = False

    def __post_init__(self) -> None:
        self.derived = self.held

    def turn(self) -> None:
        self.turned = True
"""


def test_every_form_of_assignment_after_construction_is_counted(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE, encoding="utf-8")
    found = {state.name: state for state in states(tmp_path)}
    changed = {"total", "first", "second", "rest", "noted", "index", "gone", "file", "late"}
    assert found["Sample"].changed == changed
    assert found["Sample"].attributes == changed | {"size", "kept"}
    assert (found["Inner"].attributes, found["Inner"].changed) == ({"own"}, frozenset())
    assert found["Fields"].attributes == {"held", "turned", "derived"}
    assert found["Fields"].changed == {"turned"}
    assert [state.name for state in states(tmp_path)] == ["Sample", "Fields", "Inner"]


@pytest.mark.parametrize("room", HELD)
def test_no_class_changes_more_than_ten_of_its_attributes(room: str) -> None:
    worst = states(ROOT / room)[0]
    assert len(worst.changed) <= MAX_CHANGED, (worst.name, sorted(worst.changed))
