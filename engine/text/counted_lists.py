"""How often an item stands in a list that a call names: as often as the caller counted it.

A small model copies what is ordered and loses count of it: of "two lattes and a muffin" it makes
three lattes. Owns the counts that the words of one turn give, and the lists of a call's arguments
that they settle; what is not wholly plain stays as the model wrote it. English. Pure.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ARTICLES = frozenset({"a", "an"})
NUMBERS = {
    word: number
    for number, word in enumerate(
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
        "sixteen seventeen eighteen nineteen twenty".split(),
        start=1,
    )
}
FILLERS = frozenset({"uh", "um", "er", "erm"})
MAX_COUNT = 99  # of one item: more is no count of things that a caller asks for
MAX_ITEMS = 20  # different ones, in a list
MAX_WORDS = 120  # of a turn: a minute of speech
# What the schema of a list may say without a word on how often an item stands in it.
UNCOUNTED = frozenset({"type", "items", "title", "description", "examples", "default"})


@dataclass(frozen=True, slots=True)
class CountedTurn:
    """A caller's turn, read for the lists in the calls that answer it.

    tools: those that may be called, as chat templates take them.
    """

    turn: str = ""
    tools: Sequence[dict[str, Any]] = ()

    def settle(self, name: str, arguments_json: str) -> str:
        """The arguments of a call of this name, with its lists of texts counted as the turn does.

        Only a list that names an item more than once says by that how many there are, and only
        where each of its items stands once in the turn, right behind its count, and no number
        there is left over, is the turn the better witness. The order of the items stays, and so
        does a list of whose length the tool's schema says something.
        """
        if "[" not in arguments_json:
            return arguments_json
        try:
            arguments: dict[str, Any] = json.loads(arguments_json)
        except RecursionError:  # brackets by the thousand: the tool's own check refuses them
            return arguments_json
        words = _words(self.turn)
        lists = {
            argument: _as_said(value, words)
            for argument, value in arguments.items()
            if isinstance(value, list)
            and all(isinstance(item, str) for item in value)
            and self._is_free(name, argument)
        }
        if all(Counter(items) == Counter(arguments[key]) for key, items in lists.items()):
            return arguments_json
        return json.dumps(arguments | lists, ensure_ascii=False)

    def _is_free(self, name: str, argument: str) -> bool:
        """Whether the tool's schema leaves open how often an item stands in this list."""
        for tool in self.tools:
            if tool["function"]["name"] == name:
                properties = tool["function"]["parameters"].get("properties")
                schema = properties.get(argument) if isinstance(properties, dict) else None
                return isinstance(schema, dict) and schema.keys() <= UNCOUNTED
        return False


def _as_said(items: list[str], words: Sequence[str]) -> list[str]:
    different = list(dict.fromkeys(items))
    if len(different) == len(items) or len(different) > MAX_ITEMS or len(words) > MAX_WORDS:
        return items
    counts = _counts(different, words)
    return [item for item in different for _ in range(counts[item])] if counts else items


def _counts(items: Sequence[str], words: Sequence[str]) -> dict[str, int]:
    """How many of each the words ask for; nothing where they leave a doubt."""
    counts: dict[str, int] = {}
    taken: set[int] = set()
    # The longer first: of "two vanilla lattes" none is a latte.
    for item in sorted(items, key=lambda item: -len(_words(item))):
        own = _words(item)
        starts = [
            at
            for at in range(1, len(words) - len(own) + 1)
            if own
            and taken.isdisjoint(range(at, at + len(own)))
            and all(map(_is_same, own, words[at : at + len(own)]))
        ]
        count = _count(words[starts[0] - 1]) if len(starts) == 1 else None
        if count is None:
            return {}
        counts[item] = count
        taken.update(range(starts[0] - 1, starts[0] + len(own)))
    rest = (word for at, word in enumerate(words) if at not in taken)
    return {} if any(word.isdecimal() or word in NUMBERS for word in rest) else counts


def _words(text: str) -> list[str]:
    """Small letters and figures, without fillers; a word that is stammered counts once."""
    words = [word for word in re.findall(r"[a-z0-9']+", text.lower()) if word not in FILLERS]
    return [word for at, word in enumerate(words) if at == 0 or word != words[at - 1]]


def _count(word: str) -> int | None:
    if word in ARTICLES:
        return 1
    if word.isdecimal():
        return int(word) if len(word) <= len(str(MAX_COUNT)) and int(word) else None
    return NUMBERS.get(word)


def _is_same(one: str, other: str) -> bool:
    """Whether two words are the same but for their number."""
    short, long = sorted((one, other), key=len)
    return long in (short, f"{short}s", f"{short}es")
