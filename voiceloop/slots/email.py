"""E-mail addresses as callers say them: "jane dot doe at example dot com". Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from voiceloop.slots.numbers import FILLERS, REPEATS, UNITS, digits_in

MAX_CHARS = 254  # RFC 5321, 4.5.3.1.3: a path has 256 with its brackets
ADDRESS = re.compile(
    r"[a-z0-9]([a-z0-9._%+-]*[a-z0-9])?@([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,24}"
)
SIGNS = {
    "dot": ".", "period": ".", "point": ".", "underscore": "_", "dash": "-", "hyphen": "-",
    "minus": "-", "plus": "+",
}  # fmt: skip
# Both stand in an address that nobody asked for. Recognizers lose a "dot".
EMAIL_SIGNS = re.compile(
    r"\b(?:dot|underscore|com|org|net|gmail|yahoo|hotmail|outlook|icloud|gmx)\b|@"
    r"|\be-?mail (?:address )?(?:is|it's)\b.*\bat\b"
)
EMAIL_AT = re.compile(r"\bat\b|@|\be-?mail\b")
# Behind an "at" that is none of an address: "my e-mail is not working at the moment". With a dot
# behind it each of them may be a host.
NO_HOST = re.compile(
    r"\bat (?:the|an?|my|your|our|their|this|that|all|home|work|least|once|noon|night)\b"
    r"(?!.*(?:\bdot\b|\.))"
)
# Said about the address, not of it.
ASIDES = re.compile(
    r"\b(?:all )?(?:in )?(?:lower ?case|upper ?case|one word|together|no spaces?|as one word)\b"
)
# What leads into the address: its words end before the first that may belong to it.
LEADS = frozenset(
    "is it it's its that's that be my email e-mail mail address the an a at reach me on use "
    "you can would sure yes yeah okay ok please so well i'm this goes by write to send".split()
)


def email_in(said: str) -> str:
    """The address that these words give, in small letters; "" where they give none."""
    typed = ADDRESS.search(said.lower())
    if typed is not None and ".." not in typed[0] and len(typed[0]) <= MAX_CHARS:
        return typed[0]
    words = _words(said)
    ats = [index for index, word in enumerate(words) if word == "@"]
    for at in reversed(ats):
        found = f"{_local(words[:at])}@{_domain(words[at + 1 :])}"
        if ADDRESS.fullmatch(found) and ".." not in found and len(found) <= MAX_CHARS:
            return found
    return ""


def signs_of(words: Sequence[str]) -> list[str]:
    """The same words of one that is still being said, with signs for those that mean one.

    The last "at" is its "@" where a name, a dot or nothing yet follows it.
    """
    text = re.sub(r"@|(?<=[a-z])[._+-]|[._+-](?=[a-z])", r" \g<0> ", " ".join(words))
    parts = [SIGNS.get(word, word) for word in text.split()]
    ats = [index for index, part in enumerate(parts) if part == "at"]
    if "@" not in parts and ats:
        parts[ats[-1]] = "@"
    return parts


def _words(said: str) -> list[str]:
    """Small letters; what is between the words of an address as the sign that it is."""
    text = ASIDES.sub(" ", said.lower()).replace("@", " @ ")
    text = re.sub(r"[,;:!?\"()<>\[\]]|\.(?=\s|$)", " ", text)
    text = re.sub(r"(?<=\w)([._+-])(?=\w)", r" \1 ", text)
    words = [SIGNS.get(word, word) for word in text.split() if word not in FILLERS]
    ats = [index for index, word in enumerate(words) if word == "at"]
    if "@" not in words and ats:
        dotted = [index for index in ats if "." in words[index + 1 :]]
        if dotted:
            words[dotted[-1]] = "@"
    return words


def _local(words: Sequence[str]) -> str:
    first = len(words)
    while first and not _leads(words, first - 1):
        first -= 1
    return _joined(words[first:])


def _leads(words: Sequence[str], at: int) -> bool:
    """Whether this word stands before the address; a single letter beside others belongs to it."""
    word = words[at]
    is_letter = word == "a" and (at + 1 == len(words) or len(words[at + 1]) == 1)
    return word in LEADS and not is_letter


def _domain(words: Sequence[str]) -> str:
    """Return the text up to the end of the name behind the last dot, which is one word or
    letters.
    """
    if "." not in words:
        return ""
    dot = len(words) - 1 - list(words)[::-1].index(".")
    behind = words[dot + 1 :]
    n_letters = 0
    while n_letters < len(behind) and len(behind[n_letters]) == 1 and behind[n_letters].isalpha():
        n_letters += 1
    n_end = n_letters if n_letters > 1 else 1
    return _joined([*words[: dot + 1], *behind[:n_end]])


def _joined(words: Sequence[str]) -> str:
    """Return it without spaces, with numbers as digits."""
    text = ""
    numbers: list[str] = []
    for word in (*words, ""):
        is_number = word != "o" and (word in UNITS or bool(digits_in((word,))))
        if is_number or word in REPEATS:
            numbers.append(word)
            continue
        text += digits_in(numbers) + word
        numbers = []
    return text
