"""The words of a text as they are compared, said or written, and their stems in English. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")
# Tell of no subject.
EMPTY = frozenset(
    "a an the i i'd i'm i've me my mine you you're your yours we us our they them their it "
    "its it's he she his her this that these those there here what what's whats when when's "
    "where where's who who's whose which how how's why is are am was were be been do does did "
    "done can could may might will would shall should must have has had of to in on at by for "
    "with from until till about into over up out off and or but so if as than then not no any "
    "some all every each one ones please thanks thank just also still really again now get "
    "got go going goes come comes need want like tell know say let take takes long much many "
    "often far old time day kind sort don't doesn't isn't aren't can't okay ok hi hello hey "
    "um uh er well yes ma'am sir ahead guys".split()
)
# By stem: what callers say and authors write for one thing.
SAME = {
    "kid": "children", "child": "children", "outsid": "outdoor", "pet": "dog", "film": "mov",
    "run": "own", "manag": "own", "begin": "start",
}  # fmt: skip


def words_of(text: str) -> list[str]:
    """The words of a text in small letters, without what stands between them."""
    return [word.replace("\u2019", "'") for word in WORD.findall(text.lower())]


@lru_cache(maxsize=4096)
def stems_of(text: str) -> frozenset[str]:
    """The words of a text that a question could turn on."""
    return frozenset(stem(word) for word in words_of(text) if word not in EMPTY)


def stem(word: str) -> str:
    """Return a word without what English puts behind it: park and parking are one."""
    word = word.removesuffix("'s")
    for ending in (
        "ering",
        "ered",
        "ery",
        "ations",
        "ation",
        "ments",
        "ment",
        "ings",
        "ing",
        "ers",
        "er",
        "ies",
        "ied",
        "es",
        "ed",
        "s",
        "e",
        "y",
    ):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)].rstrip("e")
            break
    word = word[:-1] if word[-1:] == word[-2:-1] else word  # cancelled
    return SAME.get(word, word)
