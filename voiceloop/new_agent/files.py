"""The files of a new agent, made of `template/`: ``@@name@@`` stands for what was answered."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

from voiceloop.new_agent.options import Wanted

MARK = re.compile(r"@@(\w+)@@")


def write(folder: Path, wanted: Wanted) -> list[Path]:
    """Make the folder and its files; returns them. Raises: OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    known = _known(wanted)
    written = []
    for template in sorted(
        resources.files(__package__).joinpath("template").iterdir(), key=lambda one: one.name
    ):
        # The module of the tools is kept under another name: here it is a text, and no code.
        file = folder / template.name.removesuffix(".txt")
        text = template.read_text(encoding="utf-8")
        file.write_text(MARK.sub(lambda mark: known[mark[1]], text), encoding="utf-8")
        written.append(file)
    return written


def _known(wanted: Wanted) -> dict[str, str]:
    """Return the known values by their marks. A name that ends with ``_toml`` is a quoted TOML
    text, which JSON's texts are.

    ``about_lines`` stands within three quotes, a sentence a line.
    """
    (item, price), *_ = wanted.items
    digits = re.search(r"\d[\d.,]*", price)
    service = f"llm_url = {_quoted(wanted.llm_url)}\n" if wanted.llm_url else ""
    service += f"llm_model = {_quoted(wanted.llm_model)}\n" if wanted.llm_model else ""
    greeting = f"Hi, this is {wanted.agent_name} at {wanted.business}. How can I help?"
    # Sentences of the shape that the model which ships was trained on: it is a small one.
    about = (
        f"You are {wanted.agent_name}, the friendly voice assistant of {wanted.business}, "
        f"{wanted.kind}.",
        f"You help callers with orders and questions about the {wanted.kind.split()[-1]}.",
        f"We are open {wanted.hours}.",
        f"You find us {wanted.place}.",
        "Answer in short sentences.",
    )
    return {
        "business": wanted.business,
        "name_toml": _quoted(wanted.agent_name),
        "greeting_toml": _quoted(greeting),
        "about_lines": " \\\n".join(_quoted(line)[1:-1] for line in about),
        "hours_toml": _quoted(f"We are open {wanted.hours}."),
        "place_toml": _quoted(f"You find us {wanted.place}."),
        "hotwords_toml": _quoted([name for name, _ in wanted.items]),
        "prices_python": "\n".join(f"    {name!r}: {cost!r}," for name, cost in wanted.items),
        "ask_price_toml": _quoted(f"How much is a {item}?"),
        "price_toml": _quoted([digits[0] if digits else price]),
        "hours_phrase_toml": _quoted([wanted.hours]),
        "service_toml": service,
    }


def _quoted(value: str | list[str]) -> str:
    return json.dumps(value, ensure_ascii=False)
