"""Values outside the word lists: what keeps a model from learning the lists by heart.

A model that only ever sees two hundred names answers with the nearest of them instead of copying
the caller's. So a share of all training values is made up: an entry with one of its words changed,
a rare name, an invented word. Held-out values (see `lexicon.is_held_out`) are never made up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from .lexicon import (
    DRINKS,
    FILM_TITLES,
    FIRST_NAMES,
    LAST_NAMES,
    MEALS,
    PASTRIES,
    SERVICES,
    entries,
    invented_word,
    is_held_out,
    pick,
)

OPEN_SHARE = 0.45
_SMALL_WORDS = frozenset("a an the of and on in at to for from with is are only no next".split())
_RARE_NAMES = entries("rare_names")
_QUALITIES = entries("qualities")
_HEADS = entries("heads")
_THINGS = entries("things")


def draw(rng: random.Random, words: Sequence[str], held_out: bool) -> str:
    """`lexicon.pick`, but a share of the training values is made up after the list's kind."""
    if held_out or rng.random() > OPEN_SHARE:
        return pick(rng, words, held_out)
    for _ in range(50):
        word = _made_up(rng, pick(rng, words, False))
        if not is_held_out(word):
            return word
    return pick(rng, words, held_out)


def _made_up(rng: random.Random, entry: str) -> str:
    """An entry of the same kind as `entry`."""
    if entry in FIRST_NAMES or entry in LAST_NAMES:
        if rng.random() < 0.75:
            return rng.choice(_RARE_NAMES)
        if rng.random() < 0.5:
            return rng.choice(_THINGS).capitalize()
        return invented_word(rng, False)
    if entry in DRINKS or entry in PASTRIES or entry in MEALS or entry in SERVICES:
        return _made_up_item(rng, entry)
    if entry in FILM_TITLES:
        first, second = rng.choice(_QUALITIES), rng.choice(_THINGS)
        return rng.choice(("{} {}", "The {} {}", "{} and {}")).format(
            first.capitalize(), second.capitalize()
        )
    parts = entry.split()
    at = [index for index, part in enumerate(parts) if part.lower() not in _SMALL_WORDS]
    if at:
        parts[rng.choice(at)] = rng.choice(_THINGS)
    return " ".join(parts)


def _made_up_item(rng: random.Random, entry: str) -> str:
    match rng.randrange(5):
        case 0:
            return f"{rng.choice(_QUALITIES)} {rng.choice(_HEADS)}"
        case 1:
            return f"{rng.choice(_QUALITIES)} {entry.split()[-1]}"
        case 2:
            return f"{rng.choice(_THINGS)} {rng.choice(_HEADS)}"
        case 3:
            return f"{rng.choice(_QUALITIES)} {rng.choice(_QUALITIES)} {rng.choice(_HEADS)}"
        case _:
            name = rng.choice(_THINGS) if rng.random() < 0.5 else invented_word(rng, False).lower()
            return name if rng.random() < 0.4 else f"{name} {entry.split()[-1]}"
