"""Generated sentences for what the dialogue data says too rarely: menus, prices, hours, digits.

The grammar stands in `phrases.toml`; it is expanded at random with a seed.
"""

import random
import re
import tomllib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any


def generate_phrases(n_sentences: int, seed: int) -> Iterator[list[str]]:
    """Sentences as lists of words, drawn by the templates' weights."""
    generator = random.Random(seed)
    templates = _grammar()["templates"]
    weights = [template["weight"] for template in templates]
    for template in generator.choices(templates, weights, k=n_sentences):
        yield _expand(template["text"], generator).split()


def _expand(template: str, generator: random.Random) -> str:
    text = generator.choice(_alternatives(template))

    def optional(match: re.Match[str]) -> str:
        return _expand(match[1], generator) if generator.random() < 0.5 else ""

    def rule(match: re.Match[str]) -> str:
        return _expand(_grammar()["rules"][match[1]], generator)

    text = re.sub(r"\{(\w+)\}", rule, re.sub(r"\[([^\]]*)\]", optional, text))
    # "{food}s": sandwiches, pancakes.
    return re.sub(r"(?<=ch)s\b", "es", re.sub(r"ss\b", "s", text))


def _alternatives(template: str) -> list[str]:
    """The text between bars that stand outside of square brackets."""
    return re.split(r"\s*\|\s*(?![^\[]*\])", template.strip())


@lru_cache(maxsize=1)
def _grammar() -> dict[str, Any]:
    return tomllib.loads((Path(__file__).parent / "phrases.toml").read_text())
