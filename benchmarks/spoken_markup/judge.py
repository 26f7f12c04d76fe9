"""What nobody should hear: characters that only markup has, names of tools, a phrase that is stuck.

Stricter than the server's own rule (`voiceloop.reply.sayable`), and shares nothing with it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection

# None of these is ever part of a sentence to be spoken; a JSON key has a colon behind its quote.
MARKUP = re.compile(r"[<>{}\[\]|\\_`]|\"\s*:")
# Copies of a phrase one behind the other, by its words: "no, no, no, no, no" is none.
MOST_COPIES_OF_ONE, MOST_COPIES, LONGEST_PHRASE = 6, 4, 8
FIGURES = frozenset("zero oh one two three four five six seven eight nine".split())


def holds_markup(said: str, tools: Collection[str] = ()) -> bool:
    """Whether a spoken reply has a piece of a call in it. tools: names that must not be said."""
    return MARKUP.search(said) is not None or any(name in said for name in tools)


def is_stuck(said: str) -> bool:
    """Whether it says the same again and again; a telephone number's digits are no such thing."""
    words = re.findall(r"[\w']+", said.lower())
    for n_words in range(1, LONGEST_PHRASE + 1):
        most = MOST_COPIES_OF_ONE if n_words == 1 else MOST_COPIES
        for start in range(len(words) - n_words * most + 1):
            phrase = words[start : start + n_words]
            if all(word in FIGURES or word.isdigit() for word in phrase):
                continue
            if words[start : start + n_words * most] == phrase * most:
                return True
    return False
