"""Benchmarks that call a server tell it the key of this machine's server, by its address."""

from __future__ import annotations

import ast
from pathlib import Path

import benchmarks


def test_every_key_is_asked_for_by_address() -> None:
    """mypy does not read benchmarks, and a call without the address fails in the first call."""
    without = []
    for path in Path(benchmarks.__path__[0]).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = (
                node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            )
            if name == "own_key" and not node.args:
                without.append(f"{path.name}:{node.lineno}")
    assert without == []
