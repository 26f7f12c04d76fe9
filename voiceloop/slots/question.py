"""Questions of the agent: what kind of answer they want.

Owns the kinds, and how a question is read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from voiceloop.agent import AgentSlot
from voiceloop.slots.numbers import UNITS


class SlotKind(Enum):
    """The kind of value that a question wants."""

    YES_NO = "yes_no"
    NUMBER = "number"  # dictated digit by digit
    QUANTITY = "quantity"  # how many
    SPELLING = "spelling"
    ADDRESS = "address"
    EMAIL = "email"
    DATE = "date"
    TIME = "time"
    CHOICE = "choice"
    OPEN = "open"


# Kinds of values whose end is like that of another: a name is no more than words.
KINDS_OF_VALUES = {"phone": SlotKind.NUMBER, "name": SlotKind.OPEN}
DICTATED = frozenset({SlotKind.NUMBER, SlotKind.SPELLING, SlotKind.ADDRESS, SlotKind.EMAIL})


@dataclass(frozen=True, slots=True)
class Slot:
    """The value that was asked for. n_digits: of a NUMBER, where it is known; of a DATE four, where
    its year is wanted, too. options: of a CHOICE.
    """

    kind: SlotKind
    n_digits: int | None = None
    options: frozenset[str] = frozenset()


# A number has so many digits where nothing else is said: a telephone number with its area code.
PHONE_DIGITS = 10
YEAR_DIGITS = 4
YES_NO_OPENERS = frozenset(
    "is are was were do does did can could would will should shall have has am may anything".split()
)
TAGS = frozenset("right correct okay yes no".split())  # "..., correct?" wants a yes or a no too
ORDERS = frozenset("tell give please spell say enter read repeat provide state share".split())
# "Could you tell me your number?" asks for the number.
REQUESTS = ("could you", "can you", "would you", "will you", "may i have", "can i have",
            "could i have", "may i get", "can i get", "could i get")  # fmt: skip
N_DIGITS_OF = {
    "zip": 5, "postal": None, "phone": PHONE_DIGITS, "telephone": PHONE_DIGITS,
    "mobile": PHONE_DIGITS, "cell": PHONE_DIGITS, "pin": 4, "ssn": 9,
}  # fmt: skip
# "Could you say it again?" asks for what was asked before.
AGAIN = re.compile(
    r"\b(?:say|tell|give|spell) .*\b(?:again|once more)\b|\brepeat (?:it|that|all)\b"
)
# "Shall I say it again?" does not: it wants a yes or a no.
OFFER = re.compile(r"\b(?:i|me to) (?:say|tell|give|spell|repeat)\b")
LOOKED_BACK = 8  # turns of the agent: two tries of a read-back take five
NUMBER_WORDS = frozenset("number digits code pin zip ssn".split()) | frozenset(N_DIGITS_OF)


def asked_in(reply: str, named: Sequence[AgentSlot] = ()) -> Slot | None:
    """Return what the agent's last sentence asks for; None where it asks nothing.

    named: what the agent's file says of its questions; the first whose words stand there decides.
    """
    last = _last_sentence(reply)
    words = _question_words(last)
    one = _named(words, named)
    if one is not None:
        kind = KINDS_OF_VALUES.get(one.kind) or SlotKind(one.kind)
        chosen = frozenset(value.lower().split()[-1] for value in one.values) or _options(words)
        n_digits = one.digits or (PHONE_DIGITS if one.kind == "phone" else None)
        return Slot(kind, n_digits, chosen if kind is SlotKind.CHOICE else frozenset())
    return _slot_asked(words) if _is_question(last, words) else None


def asked_last(replies: Sequence[str], named: Sequence[AgentSlot] = ()) -> Slot | None:
    """Return what the newest of the agent's turns asks for; replies: oldest first.

    Where it asks for something to be said again, that is what the question before wanted, behind
    values that were said back.
    """
    now = asked_in(replies[-1], named) if replies else None
    if now is None or not _wants_again(replies[-1], now):
        return now
    for reply in reversed(replies[-LOOKED_BACK:-1]):
        before = asked_in(reply, named)
        if before is None or _wants_again(reply, before) or _says_back(reply, before, named):
            continue
        return before
    return now


def _wants_again(reply: str, slot: Slot) -> bool:
    said = " ".join(_question_words(_last_sentence(reply)))
    asks = AGAIN.search(said) is not None and OFFER.search(said) is None
    return asks and slot.kind in (SlotKind.OPEN, SlotKind.YES_NO)


def _says_back(reply: str, slot: Slot, named: Sequence[AgentSlot]) -> bool:
    """Whether it asks if a value is right: "I have 5 5 5, is that right?"."""
    if slot.kind is not SlotKind.YES_NO:
        return False
    around = (one.read_back.split("{value}") for one in named if "{value}" in one.read_back)
    is_own = any(reply.startswith(parts[0]) and reply.endswith(parts[-1]) for parts in around)
    return is_own or _question_words(_last_sentence(reply))[-1] in TAGS


def named_in(reply: str, named: Sequence[AgentSlot]) -> AgentSlot | None:
    """Return whose answer a reply asks for: the first whose words its last question has."""
    last = _last_sentence(reply)
    words = _question_words(last)
    return _named(words, named) if _is_question(last, words) else None


def _named(words: tuple[str, ...], named: Sequence[AgentSlot]) -> AgentSlot | None:
    said = f" {' '.join(words)} "
    asked = ((f" {' '.join(one.asked.lower().replace('-', ' ').split())} ", one) for one in named)
    return next((one for wording, one in asked if wording in said), None)


def _last_sentence(reply: str) -> str:
    sentences = [part for part in re.split(r"[.!\n]+(?:\s|$)", reply) if part.strip(" \"'")]
    return sentences[-1].strip() if sentences else ""


def _question_words(sentence: str) -> tuple[str, ...]:
    parts = [part for part in sentence.split("?") if part.strip()]
    last = parts[-1].replace("-", " ").split() if parts else []
    return tuple(filter(None, (re.sub(r"^\W+|\W+$", "", word).lower() for word in last)))


def _is_question(sentence: str, words: tuple[str, ...]) -> bool:
    return sentence.endswith("?") or (bool(words) and words[0] in ORDERS)


def _slot_asked(words: tuple[str, ...]) -> Slot:
    said = f" {' '.join(words)} "
    is_request = said.strip().startswith(REQUESTS) or (bool(words) and words[0] in ORDERS)
    wants_value = is_request or not (words and words[0] in YES_NO_OPENERS)
    if wants_value and (" spell " in said or " letter by letter " in said):
        return Slot(SlotKind.SPELLING)
    if wants_value and (" email " in said or " e mail " in said):
        return Slot(SlotKind.EMAIL)
    if " how many " in said:
        return Slot(SlotKind.QUANTITY)
    if wants_value and NUMBER_WORDS.intersection(words):
        return Slot(SlotKind.NUMBER, _n_digits_asked(words))
    if wants_value and (" address " in said or " street " in said):
        return Slot(SlotKind.ADDRESS)
    if " what time " in said:
        return Slot(SlotKind.TIME)
    if {"day", "date", "birthday", "born"}.intersection(words) and wants_value:
        wants_year = not {"birth", "birthday", "born", "expiration", "expiry"}.isdisjoint(words)
        return Slot(SlotKind.DATE, YEAR_DIGITS if wants_year else None)
    if " or " in said:
        return Slot(SlotKind.CHOICE, options=_options(words))
    if words and (words[0] in YES_NO_OPENERS or words[-1] in TAGS):
        return Slot(SlotKind.YES_NO)
    return Slot(SlotKind.OPEN)


def _n_digits_asked(words: tuple[str, ...]) -> int | None:
    """ "the last four digits", "your 16 digit card number"; else by the number's name."""
    for word, after in zip(words, words[1:], strict=False):
        if after in ("digit", "digits") and (word in UNITS or word.isdecimal()):
            n_digits = int(UNITS.get(word) or word[:3])
            return n_digits or None
    named = [N_DIGITS_OF[word] for word in words if word in N_DIGITS_OF]
    return named[0] if named else None


def _options(words: tuple[str, ...]) -> frozenset[str]:
    """The words on both sides of each "or"."""
    places = [index for index, word in enumerate(words) if word == "or"]
    beside = (words[index + step] for index in places for step in (-1, 1))
    return frozenset(word for index, word in zip(range(2 * len(places)), beside, strict=False))
