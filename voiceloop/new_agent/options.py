"""The questions of ``voiceloop init``: each a flag of the command line, and a question in a
terminal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

from voiceloop.errors import InvalidRequest

MAX_CHARS = 400  # of one answer: it stands in the agent's instructions, which each turn reads
MAX_ITEMS = 50
ITEM = re.compile(r"\s*([^=]{1,60}?)\s*=\s*([^=]{1,40}?)\s*")


@dataclass(frozen=True, slots=True)
class Option:
    """One question. default: an example that runs as it is."""

    name: str
    question: str
    default: str

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")


OPTIONS = (
    Option("business", "What is the business called?", "Corner Bakery"),
    Option("kind", "What is it?", "a small bakery"),
    Option("agent_name", "What is the agent called?", "Billie"),
    Option(
        "hours", "When is it open?", "Monday to Saturday from 7 am to 4 pm and closed on Sunday"
    ),
    Option("place", "Where is it?", "near the town hall"),
    Option(
        "items", "What does it sell, at what price?", "bagel = $2.25, scone = $3.00, rye = $5.75"
    ),
    Option("llm_url", "The address of a model server of yours? (empty: the model that ships)", ""),
    Option("llm_model", "The model's name there? (empty: the only one)", ""),
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The answers, checked. items: names with prices, at least one."""

    business: str
    kind: str
    agent_name: str
    hours: str
    place: str
    items: tuple[tuple[str, str], ...]
    llm_url: str
    llm_model: str


def listed() -> list[dict[str, str]]:
    """The options for a program: `--list-options`."""
    return [{"flag": one.flag, "question": one.question, "default": one.default} for one in OPTIONS]


def wanted_of(answers: dict[str, str]) -> Wanted:
    """answers: by the name of the option; what is missing has its default.

    Raises:
        InvalidRequest: an answer is too long, or holds no text, or `items` are none.
    """
    whole: dict[str, Any] = {one.name: _text(one, answers) for one in OPTIONS}
    whole["items"] = _items(whole["items"])
    return Wanted(**{field.name: whole[field.name] for field in fields(Wanted)})


def _text(option: Option, answers: dict[str, str]) -> str:
    text = " ".join(answers.get(option.name, option.default).split())
    may_be_empty = not option.default
    if len(text) > MAX_CHARS or not (text or may_be_empty) or not text.isprintable():
        least = 0 if may_be_empty else 1
        raise InvalidRequest(
            f"expected {least} to {MAX_CHARS} printable characters for {option.flag}, "
            f"found {len(text)}"
        )
    return text


def _items(text: str) -> tuple[tuple[str, str], ...]:
    parts = [part for part in text.split(",") if part.strip()]
    found = [ITEM.fullmatch(part) for part in parts]
    if not 1 <= len(parts) <= MAX_ITEMS or None in found:
        raise InvalidRequest(
            f"expected 1 to {MAX_ITEMS} items for --items, as 'bagel = $2.25, scone = $3.00', "
            f"found {text[:80]!r}"
        )
    items = tuple((match[1].lower(), match[2]) for match in found if match is not None)
    if len({name for name, _ in items}) < len(items):
        raise InvalidRequest(f"expected each of --items once, found {text[:80]!r}")
    return items
