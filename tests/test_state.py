"""What a class changes is counted in full, and each state of the call's machines is drawn."""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path

import pytest

from tests.state import ROOT, states
from voiceloop.call.turn_taking import Agent, Caller
from voiceloop.reply.phase import ReplyPhase

DRAWN = (Caller, Agent, ReplyPhase)  # machines whose every state stands in CONTRIBUTING.md
# Enums of the call and its replies that are no machine of their own: kinds, causes, results.
KINDS = {"Step", "Ending", "Opening", "Breakage", "TextEnd", "PhaseEvent"}
# Machines that are still without a drawing. None is added here.
NOT_YET = {"PacerState", "Preemptive"}
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


class Heir(Fields):
    def __init__(self) -> None:
        self.added = 1

    def turn(self) -> None:
        self.derived = 2
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
    assert found["Heir"].attributes == {"held", "turned", "derived", "added"}
    assert found["Heir"].changed == {"turned", "derived"}
    names = [state.name for state in states(tmp_path)]
    assert names == ["Sample", "Heir", "Fields", "Inner"]


@pytest.mark.parametrize("machine", DRAWN)
def test_each_state_of_a_machine_is_drawn(machine: type[Enum]) -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    drawing = page[page.index("## The state table") :]
    assert not [state.value for state in machine if state.value not in drawing]


def test_each_machine_of_the_call_and_its_replies_is_drawn() -> None:
    files = [
        path for wing in ("call", "reply") for path in (ROOT / "voiceloop" / wing).rglob("*.py")
    ]
    enums = {
        node.name
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and any("Enum" in ast.unparse(b) for b in node.bases)
    }
    assert enums <= {machine.__name__ for machine in DRAWN} | KINDS | NOT_YET
