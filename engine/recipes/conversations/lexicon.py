"""Word lists of the call generator, from `words.toml`: people, places, dishes.

Every list is split by `pick`: nine tenths of the entries are for training, the rest appear only
in evaluation calls, so that a model cannot pass by remembering them.
"""

from __future__ import annotations

import random
import tomllib
import zlib
from collections.abc import Sequence
from pathlib import Path

WORDS = tomllib.loads(Path(__file__).with_name("words.toml").read_text())


def split(text: str) -> tuple[str, ...]:
    """The entries of a list in the TOML files here."""
    return tuple(entry.strip() for entry in text.split(";"))


def entries(name: str) -> tuple[str, ...]:
    """A list of `words.toml`."""
    return split(WORDS["lists"][name])


FIRST_NAMES = entries("first_names")
LAST_NAMES = entries("last_names")
_PLACE_FIRST = entries("place_first")
_PLACE_LAST = entries("place_last")
_SYLLABLES = entries("syllables")
_ENDINGS = entries("endings")

DRINKS = entries("drinks")
PASTRIES = entries("pastries")
MEALS = entries("meals")
SIZES = ("small", "medium", "large", "regular", "extra large")
MILKS = entries("milks")
FILM_TITLES = entries("film_titles")
SERVICES = entries("services")
ROOM_TYPES = entries("room_types")
HOME_ROOMS = entries("home_rooms")
HOME_DEVICES = entries("home_devices")
TOWNS = entries("towns")


def is_held_out(word: str) -> bool:
    """Whether a list entry is kept for evaluation only (one tenth, by its CRC)."""
    return zlib.crc32(word.lower().encode()) % 10 == 0


def pick(rng: random.Random, words: Sequence[str], held_out: bool) -> str:
    """Draw an entry from the training part of a list, or from its evaluation part."""
    for _ in range(200):
        word = rng.choice(words)
        if is_held_out(word) == held_out:
            return word
    return rng.choice(words)


def invented_word(rng: random.Random, held_out: bool) -> str:
    """A made-up proper name such as `Velmora`; the two parts of the split never meet."""
    while True:
        word = "".join(rng.choice(_SYLLABLES) for _ in range(rng.choice((1, 2, 2))))
        word = (word + rng.choice(_ENDINGS)).capitalize()
        if len(word) > 3 and is_held_out(word) == held_out:
            return word


def place_name(rng: random.Random, held_out: bool) -> str:
    """The proper part of a business name, such as `Copper Kettle`, `Rosa's` or `Velmora`."""
    first = pick(rng, _PLACE_FIRST, held_out)
    match rng.randrange(6):
        case 0:
            return first
        case 1 | 2:
            return f"{first} {pick(rng, _PLACE_LAST, held_out)}"
        case 3:
            return f"{pick(rng, FIRST_NAMES, held_out)}'s"
        case 4:
            return f"{first} and {pick(rng, _PLACE_FIRST, held_out)}"
        case _:
            return invented_word(rng, held_out)
