"""How a word sounds, as a short key: words that a recognizer takes for each other share it.

Owns that key. It is made from spelling, by the letter rules that Soundex and Metaphone share:
vowels after the first sound count for nothing, and consonants that differ in voice alone (b and p,
d and t) count as one, since those are what recognizers confuse most. It is made for English and
does for other languages in Latin letters, whose marks are taken off first.

Source: Lawrence Philips, "Hanging on the Metaphone", Computer Language 7(12), 1990; the classes
of consonants are those of Soundex (Russell, US patent 1,261,167), split by manner.
"""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

MAX_WORD_CHARS = 64  # longer is no word that anybody says
# Of distinct words, kept: a folder's vocabulary, and the words callers use.
CACHED_WORDS = 65_536

# Letters that are written and not said, or said as another, in the order in which they are applied.
SPELLINGS = tuple(
    (re.compile(pattern), said)
    for pattern, said in (
        (r"^(?:kn|gn|pn|ae|wr)", lambda match: match[0][1]),
        (r"^x", "s"),
        (r"^wh", "w"),
        (r"mb$", "m"),
        (r"sch", "sk"),
        (r"tch", "C"),
        (r"t(?=i[ao])|(?:s|c)(?=i[aou])|sh", "S"),
        (r"ch", "C"),
        (r"dg(?=[eiy])", "C"),
        (r"ph", "f"),
        (r"th", "T"),
        (r"igh|eigh|ough|augh", "a"),
        (r"gh", "k"),
        (r"gn(?=e?d?$)", "n"),
        (r"g(?=[eiy])", "C"),
        (r"c(?=[eiy])", "s"),
        (r"ck|cq|c|q", "k"),
        (r"x", "ks"),
        (r"(?<!^)[hw]", ""),
    )
)
VOWELS = frozenset("aeiouy")
# The class of a consonant: what differs in voice alone is one class, and so are the two nasals.
CLASSES = {
    "b": "p", "p": "p", "f": "f", "v": "f", "d": "t", "t": "t", "T": "t", "k": "k", "g": "k",
    "s": "s", "z": "s", "C": "x", "S": "x", "j": "x", "m": "n", "n": "n", "l": "l", "r": "r",
    "w": "w", "h": "h",
}  # fmt: skip


@lru_cache(CACHED_WORDS)
def sound_key(word: str) -> str:
    """The key of one word: its first sound and the consonants after it; digits are themselves.

    >>> sound_key("refund") == sound_key("refined")
    True

    A word without a Latin letter or a digit has the empty key, and matches by spelling alone.
    """
    # Taken apart first: letters of mathematics have no small form of their own.
    letters = unicodedata.normalize("NFKD", word[:MAX_WORD_CHARS]).lower()
    plain = "".join(letter for letter in letters if letter.isascii() and letter.isalnum())
    if not plain:
        return ""
    if any(letter.isdigit() for letter in plain):
        return plain
    for pattern, said in SPELLINGS:
        plain = pattern.sub(said, plain)
    key = ""
    for index, letter in enumerate(plain):
        if letter in VOWELS:
            sound = "a" if index == 0 else ""
        else:
            sound = CLASSES[letter]
        # A doubled letter, or two of one class side by side, are one sound.
        if sound and not (key.endswith(sound) and CLASSES.get(plain[index - 1]) == sound):
            key += sound
    return key
