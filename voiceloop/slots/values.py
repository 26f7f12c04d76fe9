"""The value that a caller's words give for a slot, and how it is said back. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from voiceloop.agent import AgentSlot
from voiceloop.memory.reading import name_in
from voiceloop.slots.dates import date_in, spoken_date
from voiceloop.slots.email import email_in
from voiceloop.slots.letters import letter_runs
from voiceloop.slots.numbers import FILLERS, digit_runs, digits_in
from voiceloop.slots.progress import LOCAL_DIGITS, STREET_TYPES
from voiceloop.slots.question import PHONE_DIGITS

MAX_SAID_CHARS = 2000  # of a turn that is read: a value is said in far less
MAX_NAME_WORDS = 4
MAX_ADDRESS_WORDS = 16
LEAST_PHONE_DIGITS, MOST_PHONE_DIGITS = LOCAL_DIGITS, 15  # E.164 has 15 at most
# Behind a + or a 0, which no number of ten begins with that has neither: New Zealand's mobile
# numbers and those of small countries have nine.
LEAST_PREFIXED_DIGITS = 9
NATIONAL_PREFIX = "1"  # of numbers of ten digits
# What is nobody's name, number or street, and might be read as markup where the value is shown.
NEVER_SAID = re.compile(r"[^\w\s.,!?;:\"'()+@/#&%\u2019-]")
NAME_WORD = re.compile(r"[^\W\d_]+(?:['\u2019-][^\W\d_]+)*")
# Said before a value, or behind it, and no part of it.
LEADS = frozenset(
    "think guess believe suppose it's its it is that's that the name my full address i live we at "
    "on this i'm im am sure yes yeah okay ok well so please thanks thank you hi hello and here "
    "under of be would last first no sorry actually oh".split()
)
TRAILS = frozenset("please thanks thank you sir madam okay ok".split())
# A sentence with one of these answers no question for a name.
NO_NAMES = frozenset(
    "what why how when where who which do does don't can can't could would should not need want "
    "have has was are tell ask mean think know again rather later moment minute second just for "
    "to with a two three four five six about your calling order hold hang moment pardon".split()
)


@dataclass(frozen=True, slots=True)
class Value:
    """The value that was given. fits: the slot takes it: it is whole."""

    text: str
    fits: bool = True


def words_said(said: str) -> list[str]:
    """Small letters, without punctuation at the words' ends."""
    plain = NEVER_SAID.sub("", said[:MAX_SAID_CHARS].lower())
    bare = (word.strip(".,!?;:\"'()") for word in plain.split())
    return [word for word in bare if word]


def value_in(slot: AgentSlot, said: str) -> Value | None:
    """The value that these words give for the slot; None where they give none."""
    said = said[:MAX_SAID_CHARS]
    text = _text(slot, said)
    return Value(text, fits(slot, text)) if text else None


def fits(slot: AgentSlot, text: str) -> bool:
    """Whether the slot takes this value."""
    n_digits = len(text.lstrip("+"))
    if slot.digits is not None:
        return n_digits == slot.digits
    if slot.kind != "phone":
        return True
    if text.startswith(("+", "0")):
        return LEAST_PREFIXED_DIGITS <= n_digits <= MOST_PHONE_DIGITS
    return n_digits == PHONE_DIGITS + text.startswith(NATIONAL_PREFIX)


def may_fit(slot: AgentSlot, text: str) -> bool:
    """Whether a value that does not fit may be whole all the same, as a local number is."""
    n_digits = len(text.lstrip("+"))
    is_long_enough = LEAST_PHONE_DIGITS <= n_digits <= MOST_PHONE_DIGITS
    return slot.kind == "phone" and slot.digits is None and is_long_enough


def is_written(slot: AgentSlot, text: str) -> bool:
    """Whether this is a value of the slot's kind at all, as a corrected one may not be."""
    match slot.kind:
        case "email":
            return email_in(text) == text.lower() != ""
        case "name":
            return bool(text) and all(map(NAME_WORD.fullmatch, text.split()))
    return bool(text)


def _text(slot: AgentSlot, said: str) -> str:
    words = words_said(said)
    match slot.kind:
        case "phone":
            return digits_in(words, slot.digits or PHONE_DIGITS)
        case "number":
            return digits_in(words, slot.digits)
        case "spelling":
            return max(letter_runs(words, with_digits=True), key=len, default="").upper()
        case "email":
            return email_in(said)
        case "date":
            return date_in(said)
        case "name":
            return _name(said, words)
        case "address":
            return _address(words)
        case "choice":
            return _choice(slot.values, words)
    return ""


def _name(said: str, words: Sequence[str]) -> str:
    """As it was said, where a spelling does not say it better: "Jane Smith, s m y t h"."""
    runs = letter_runs(words)
    spelled = max(runs, key=len, default="")
    before = [word for word in words if len(word) > 1 and word.replace("-", "") != spelled]
    known = words_said(name_in(said))
    parts = [word for word in known if len(word) > 1] or _trimmed(before)
    if spelled and len(spelled) > 2:
        known_before = [] if len(before) == len(words) else parts[:-1]
        alike = bool(parts) and parts[-1][0] == spelled[0]
        parts = [*(known_before if alike else []), spelled]
    is_name = all(NAME_WORD.fullmatch(word) for word in parts)
    if not parts or len(parts) > MAX_NAME_WORDS or not is_name or NO_NAMES & set(parts):
        return ""
    return re.sub(r"(?<!\w)\w|(?<=[-'])\w(?=\w\w)", lambda one: one[0].upper(), " ".join(parts))


def _address(words: Sequence[str]) -> str:
    """Return the address with its numbers as figures: "12 Elm Street" of "it's twelve elm
    street".
    """
    parts = _trimmed(words)
    text: list[str] = []
    numbers: list[str] = []
    for word in (*parts, ""):
        if word and digit_runs((word,)):
            numbers.append(word)
            continue
        if numbers:
            text.append("".join(digit_runs(numbers)))
            numbers = []
        text.append(word.capitalize())
    text = [word for word in text if word][:MAX_ADDRESS_WORDS]
    has_number = any(word.isdecimal() for word in text)
    has_street = any(word.lower() in STREET_TYPES for word in text)
    return " ".join(text) if has_number and (has_street or len(text) > 1) else ""


def _choice(values: Sequence[str], words: Sequence[str]) -> str:
    """The one that is named; of two that stand in each other, as "large" in "extra large", the
    longer; "" where none is, or more.
    """
    said = f" {' '.join(words)} "
    named = [value for value in values if f" {' '.join(words_said(value))} " in said]
    small = {value.lower(): value for value in named}
    named = [small[one] for one in small if not any(one != each and one in each for each in small)]
    return named[0] if len(named) == 1 else ""


def _trimmed(words: Sequence[str]) -> list[str]:
    kept = [word for word in words if word not in FILLERS]
    while kept and kept[0] in LEADS:
        del kept[0]
    while kept and kept[-1] in TRAILS:
        del kept[-1]
    return kept


# --- said back ------------------------------------------------------------------------------------


def spoken(slot: AgentSlot, text: str) -> str:
    """The value as the agent says it back, so that a mistake is heard: digits and letters apart."""
    match slot.kind:
        case "phone" | "number":
            plus = "plus " if text.startswith("+") else ""
            return plus + ", ".join(" ".join(group) for group in _groups(text.lstrip("+")))
        case "spelling":
            return ", ".join(" ".join(group) for group in _groups(text))
        case "email":
            local, _, domain = text.partition("@")
            return f"{_letters(local)} at {domain.replace('.', ' dot ')}"
        case "date":
            return spoken_date(text)
    return text


def _groups(text: str) -> list[str]:
    """Return groups of three, the last of three to five where there is more than one: 555 012
    3456.
    """
    starts = list(range(0, max(len(text) - 2, 1), 3))
    if len(text) < 6:
        return [text]
    return [text[at:end] for at, end in zip(starts, [*starts[1:], len(text)], strict=True)]


def _letters(local: str) -> str:
    names = {".": "dot", "_": "underscore", "-": "dash", "+": "plus", "%": "percent"}
    return " ".join(names.get(letter, letter) for letter in local)
