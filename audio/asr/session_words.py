"""Words only one session knows: its hotwords, and the names and menu items of its prompt."""

import re

from ..normalize import spoken_words
from ..stream import RecognizerOptions

MAX_PHRASES = 80  # each is one more way to say the class token: too many would drown the rest
MAX_WORDS = 4  # in a phrase

_PRICED = re.compile(
    r"([A-Za-z][A-Za-z' -]{1,60}?)\s*(?:[:=(-]|is|are|for|at|costs?)?\s*[$\u20ac\u00a3]\s?\d"
)
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z']+(?: [A-Z][a-z']+)*")
_LEADING = frozenset("a an the and or our is are for at menu drinks food with of".split())
_COMMON = frozenset(
    "i i'm i'll i'd monday tuesday wednesday thursday friday saturday sunday january february"
    " march april may june july august september october november december".split()
)


def session_phrases(options: RecognizerOptions) -> tuple[tuple[str, ...], ...]:
    """Phrases (tuples of lower-case spoken words) to expect, the surest first, no repeats.

    Every hotword; of the context what stands before a price, and capitalised words that do not
    start a sentence.
    """
    texts = [*options.hotwords]
    for match in _PRICED.finditer(options.context):
        texts.append(match[1])
    texts += _NAME.findall(options.context)
    phrases: dict[tuple[str, ...], None] = {}
    for text in texts:
        words = spoken_words(text)[-MAX_WORDS:]
        while words and words[0] in _LEADING:
            words = words[1:]
        if words and not (len(words) == 1 and words[0] in _COMMON):
            phrases[tuple(words)] = None
    return tuple(phrases)[:MAX_PHRASES]
