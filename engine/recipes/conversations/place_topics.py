"""Questions of callers about places besides hours and prices, from `places.toml`.

The card's calls draw from the facts and stay as they are; practice adds topics, wordings, things
that a prompt denies, and things that it is silent about.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .lexicon import FIRST_NAMES, MEALS, PASTRIES, TOWNS, entries, split

PLACES = tomllib.loads(Path(__file__).with_name("places.toml").read_text())
# The values of topics that have none in the file.
_VALUES = {
    "manager": FIRST_NAMES,
    "owner": FIRST_NAMES,
    "founded": tuple(str(year) for year in range(1921, 2025)),
    "special": tuple(f"the {item}" for item in MEALS[::2] + PASTRIES[::3]),
    "gluten": tuple(f"the {item}" for item in MEALS[1::2] + PASTRIES[1::3]),
    "nearby": TOWNS,
}
# topic, questions, sentence of the prompt, reply, values of {v}
Topic = tuple[str, str, str, str, tuple[str, ...]]


def _topics(table: Iterable[Mapping[str, Any]]) -> tuple[Topic, ...]:
    return tuple(
        (
            one["topic"],
            one["asked"],
            one["prompt"],
            one["reply"],
            split(one["values"]) if "values" in one else _VALUES[one["topic"]],
        )
        for one in table
    )


PLACE_FACTS = _topics(PLACES["facts"])
TOPICS = PLACE_FACTS + _topics(PLACES["more"])
# More wordings of a question, by topic of PLACE_FACTS.
WORDINGS: dict[str, str] = PLACES["wordings"]
# What a prompt denies: topic, its sentence, the reply, and the word that makes the reply right.
DENIALS: tuple[tuple[str, str, str, str], ...] = tuple(
    (one["topic"], one["prompt"], one["reply"], one["right"]) for one in PLACES["denials"]
)
# Things a place may have beside what it sells; a prompt never names these, so nobody knows.
AMENITIES = entries("amenities")
# Kinds of food and drink that callers ask for by their common name.
COMMON_NAMES = entries("common_names")
COMMON_SERVICES = entries("common_services")
