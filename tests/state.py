"""Counts the state of every class: its attributes, and those that change after construction.

    python -m tests.state [PATH ...]

An attribute is a name assigned on the instance by a method, in whatever form (plain, annotated,
augmented, unpacked, deleted, target of a loop or a `with`), or an annotated field of the class's
body. It changes when anything but `__init__` and `__post_init__` assigns it. A class holds what its
bases hold, those outside the given paths apart.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRUCTION = {"__init__", "__post_init__"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class: where it stands, what it holds, and what of it changes."""

    path: Path
    name: str
    attributes: frozenset[str]
    changed: frozenset[str]
    bases: tuple[str, ...] = ()


def assigned(node: ast.AST, instance: str, is_construction: bool) -> Iterator[tuple[str, bool]]:
    """Names assigned on `instance` below a node, each with whether that is in construction.

    A function inside a constructor runs later; a class inside a method has an instance of its own.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            continue
        if isinstance(child, ast.Attribute) and not isinstance(child.ctx, ast.Load):
            if isinstance(child.value, ast.Name) and child.value.id == instance:
                yield child.attr, is_construction
        is_later = isinstance(child, Function | ast.Lambda)
        yield from assigned(child, instance, is_construction and not is_later)


def state_of(path: Path, node: ast.ClassDef) -> ClassState:
    """Attributes that one class assigns itself, and the names of its bases."""
    fields = {
        statement.target.id
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and "ClassVar" not in ast.unparse(statement.annotation)
    }
    found: list[tuple[str, bool]] = []
    for method in node.body:
        if isinstance(method, Function) and method.args.args:
            instance = method.args.args[0].arg
            found += assigned(method, instance, method.name in CONSTRUCTION)
    changed = frozenset(name for name, is_construction in found if not is_construction)
    bases = tuple(ast.unparse(base).split(".")[-1] for base in node.bases)
    attributes = frozenset(fields) | {name for name, _ in found}
    return ClassState(path, node.name, attributes, changed, bases)


def inherited(state: ClassState, known: dict[str, list[ClassState]]) -> ClassState:
    """The class with what its bases assign; of two bases of one name, that of its own file."""
    for name in state.bases:
        bases = [base for base in known.get(name, []) if base is not state]
        if bases:
            near = [base for base in bases if base.path == state.path]
            base = inherited((near or bases)[0], known)
            state = replace(
                state,
                attributes=state.attributes | base.attributes,
                changed=state.changed | base.changed,
            )
    return state


def states(*paths: Path) -> list[ClassState]:
    """Every class of these files and folders, the one that changes most first."""
    files = [file for path in paths for file in ([path] if path.is_file() else path.rglob("*.py"))]
    found = [
        state_of(file, node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    known: dict[str, list[ClassState]] = {}
    for state in found:
        known.setdefault(state.name, []).append(state)
    found = [inherited(state, known) for state in found]
    return sorted(found, key=lambda s: (-len(s.changed), -len(s.attributes), s.name))


def main() -> None:
    given = [Path(argument).resolve() for argument in sys.argv[1:]]
    print("changed  attributes  class")
    for state in states(*(given or [ROOT / "voiceloop", ROOT / "engine", ROOT / "audio"])):
        if state.changed:
            where = state.path.relative_to(ROOT)
            print(f"{len(state.changed):7}  {len(state.attributes):10}  {state.name} ({where})")


if __name__ == "__main__":
    main()
