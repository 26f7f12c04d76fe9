"""Plain questions to three businesses: the shipped cafe, the shipped pizzeria, and a dentist.

Owns the reading of `questions/*.toml`: the turns, and the keyword rules that a good reply meets.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[3]
_FOLDER = Path(__file__).with_name("questions")
BUSINESSES = ("cafe", "pizzeria", "dentist")


@dataclass(frozen=True, slots=True)
class Question:
    """One typed turn and its rule: of each list of `expect` one is said, of `never` nothing.

    tool: the tool that must be called first; without it a call is allowed.
    """

    text: str
    expect: tuple[tuple[str, ...], ...]
    never: tuple[str, ...] = ()
    tool: str | None = None


@dataclass(frozen=True, slots=True)
class Questions:
    """The turns for one business, in one call or each in a call of its own; file: its agent."""

    file: Path
    agent: dict[str, Any]
    is_one_call: bool
    turns: tuple[Question, ...]


@lru_cache
def read_questions(business: str) -> Questions:
    """The turns of one of `BUSINESSES` and its agent file."""
    given = tomllib.loads((_FOLDER / f"{business}.toml").read_text())
    file = _ROOT / given["agent"]
    return Questions(
        file,
        tomllib.loads(file.read_text()),
        given["is_one_call"],
        tuple(
            Question(
                turn["text"],
                tuple(tuple(words) for words in turn["expect"]),
                tuple(turn.get("never", ())),
                turn.get("tool"),
            )
            for turn in given["turns"]
        ),
    )
