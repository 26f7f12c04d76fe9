"""Nobody decides by what is measured: the call writes a turn's record, observers read it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from voiceloop.telemetry.record import TurnFacts, TurnRecord

ROOT = Path(__file__).resolve().parents[3] / "voiceloop"
# They are given a record that is finished; a canary's trial and a recording among them.
OBSERVERS = {
    "telemetry/record.py",
    "telemetry/metrics.py",
    "telemetry/traces.py",
    "telemetry/canary.py",
    "recording/tap.py",
}
# Of `Replies` and `PreemptiveReplies`: what gives a finished record to the client and the budget.
OBSERVING = {"_tell_client", "observe_turn", "_observe_in_trial", "take_back"}
READ = {
    "marks", "facts", "draft", "end", "gap_ms", "answer_ms", "stages", "payload",
    "turn_id", "response_ids", *TurnFacts.__annotations__,
}  # fmt: skip
RECORDS = {"record", "_record", "started"}


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def reads(tree: ast.AST) -> list[str]:
    """What of a record this code reads: `record.marks`, and `record.facts.cut` unless it is set."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef) and node.name in OBSERVING:
            continue
        found += reads(node)
        if not isinstance(node, ast.Attribute):
            continue
        of_facts = name_of(node.value) == "facts" and isinstance(node.value, ast.Attribute)
        owner = node.value.value if of_facts else node.value  # type: ignore[attr-defined]
        is_read = not isinstance(node.ctx, ast.Store) and node.attr in READ - {"facts"}
        if is_read and name_of(owner) in RECORDS:
            found.append(ast.unparse(node))
    return found


def test_nothing_but_observers_reads_the_record_of_a_turn() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text("utf-8")
        name = str(path.relative_to(ROOT))
        if name not in OBSERVERS and any(record in text for record in RECORDS):
            assert not reads(ast.parse(text)), name


@pytest.mark.parametrize(
    "code",
    ["if reply.record.facts.cut:\n    stop()", "x = self.record.marks.get(1)", "a(record.gap_ms)"],
)
def test_who_reads_it_is_found(code: str) -> None:
    assert reads(ast.parse(code))


def test_who_writes_it_is_not() -> None:
    written = "self.record.facts.cut = 'soft'\nturn.record.mark(1, 2.0)\nrecord.note_calls(a, 1.0)"
    assert not reads(ast.parse(written))


def test_the_test_knows_all_there_is_to_read() -> None:
    public = {name for name in vars(TurnRecord("t")) | vars(TurnRecord) if not name.startswith("_")}
    written = {"mark", "note_response", "note_calls", "note_first_token", "note_draft", "note_held",
               "note_speaker",
               "before_sound", "take_over", "note_cut", "finish", "speech_end_ms"}  # fmt: skip
    assert public - written <= READ
