"""Words only one session knows: its hotwords, and the names and menu items of its prompt."""

import re
from collections.abc import Iterator
from functools import lru_cache

from ..normalize import spoken_words
from ..stream import RecognizerOptions

MAX_PHRASES = 80  # each is one more way to say the class token: too many would drown the rest
MAX_WORDS = 4  # in a phrase
MAX_CONTEXT_CHARS = 20_000  # of a prompt: ten pages; a client may send megabytes

_PRICE = re.compile("[$\u20ac\u00a3]\\s?\\d")
_BEFORE_PRICE = re.compile(r"([A-Za-z][A-Za-z' -]{1,60}?)\s*(?:[:=(-]|is|are|for|at|costs?)?\s*\Z")
_BEFORE_PRICE_CHARS = 100  # what such a phrase with its verb and spaces may take
_NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z']+(?: [A-Z][a-z']+)*")
_LEADING = frozenset("a an the and or our is are for at menu drinks food with of".split())
_COMMON = frozenset(
    "i i'm i'll i'd monday tuesday wednesday thursday friday saturday sunday january february"
    " march april may june july august september october november december".split()
)


@lru_cache(maxsize=64)  # a prompt may be long, and a call has hundreds of segments
def session_phrases(options: RecognizerOptions) -> tuple[tuple[str, ...], ...]:
    """Phrases (tuples of lower-case spoken words) to expect, the surest first, no repeats.

    Every hotword; of the context what stands before a price, and capitalised words that do not
    start a sentence.
    """
    context = options.context[:MAX_CONTEXT_CHARS]
    texts = [*options.hotwords, *_priced(context), *_NAME.findall(context)]
    phrases: dict[tuple[str, ...], None] = {}
    for text in dict.fromkeys(texts):
        if len(phrases) == MAX_PHRASES:
            break
        words = spoken_words(text)[-MAX_WORDS:]
        while words and words[0] in _LEADING:
            words = words[1:]
        if words and not (len(words) == 1 and words[0] in _COMMON):
            phrases[tuple(words)] = None
    return tuple(phrases)


def _priced(context: str) -> Iterator[str]:
    """Yield what stands before each price."""
    last_end = 0
    for price in _PRICE.finditer(context):
        first = max(last_end, price.start() - _BEFORE_PRICE_CHARS)
        match = _BEFORE_PRICE.search(context[first : price.start()])
        if match is not None:
            yield match[1]
        last_end = price.end()
