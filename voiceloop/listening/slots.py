"""Slots: what the agent asked for, and how far the caller's answer to it has come.

Owns the kinds of answers whose end can be counted rather than guessed (a number of so many digits,
a name spelled, an address, a date), how they are read from the agent's question, and the state of
an answer. Who dictates pauses between groups, so a pause there says little, and the count much.
English, as the agents that ship. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from voiceloop.agent import AgentSlot


class SlotKind(Enum):
    """What a question wants to know."""

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


class Answer(Enum):
    """How far an answer has come by its words."""

    UNDER_WAY = "under_way"
    PLAUSIBLE = "plausible"  # some end here, others go on
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class Slot:
    """What was asked for. n_digits: of a NUMBER, where it is known. options: of a CHOICE."""

    kind: SlotKind
    n_digits: int | None = None
    options: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Progress:
    """What the caller is giving, asked for or not, and how far that has come."""

    kind: SlotKind
    answer: Answer


FILLERS = frozenset("uh um er erm hmm hm ah eh well uhm mm".split())
UNITS = {
    word: str(n)
    for n, word in enumerate("zero one two three four five six seven eight nine".split())
} | {"oh": "0", "o": "0", "nought": "0"}
# Two digits each; those of ten a unit may follow that takes the place of their zero.
TEENS = dict(
    zip(
        "ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(),
        range(10, 20),
        strict=True,
    )
)
TENS = dict(
    zip(
        "twenty thirty forty fifty sixty seventy eighty ninety".split(),
        range(20, 100, 10),
        strict=True,
    )
)
REPEATS = {"double": 2, "triple": 3}
MAGNITUDES = {"hundred": 2, "thousand": 3}  # zeros that they add
BEFORE_A_ONE = frozenset("have got that this which another the".split())  # no digit there
# Said between groups of digits or letters.
JOINTS = FILLERS | frozenset("and then dash hyphen space area code plus".split())
STREET_TYPES = frozenset(
    "street st road rd avenue ave drive dr lane ln way court ct place pl boulevard blvd circle "
    "terrace square parkway highway trail crescent close alley loop row".split()
)
UNIT_WORDS = frozenset(
    "apartment apt unit suite flat number floor building room block house".split()
)
MONTHS = frozenset(
    "january february march april may june july august september october november december".split()
)
DAYS = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow tonight".split()
)
DAY_ORDINALS = frozenset(
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth thirtieth".split()
)
TIME_ENDS = frozenset("am pm a.m p.m o'clock noon midnight morning afternoon evening".split())
MAIL_ENDS = frozenset("com org net edu gov io uk de fr in co".split())
# A number has so many digits where nothing else is said: a telephone number with its area code.
PHONE_DIGITS = 10
LOCAL_DIGITS = 7  # the same without
LEAST_RUN = 3  # digits or letters in a row that are dictated without being asked for


@dataclass(frozen=True, slots=True)
class DigitRun:
    """The digits that the words end in. n_words: that it takes; is_open: one more must follow."""

    n_digits: int = 0
    n_words: int = 0
    is_open: bool = False


def digits_at_end(words: Sequence[str]) -> DigitRun:
    """Digits at the end of the words, in any grouping, as words or figures.

    "double five" and "fifty-five" are two, "eight hundred" three; fillers between them are none.
    """
    start = len(words)
    while start and (_is_number(words[start - 1]) or words[start - 1] in JOINTS):
        start -= 1
    while start < len(words) and words[start] in JOINTS:
        start += 1
    n_digits, times, after_ten = 0, 1, False
    for word in words[start:]:
        if word in REPEATS:
            times = REPEATS[word]
            continue
        if word in JOINTS:
            after_ten = False
            continue
        n_digits += 0 if after_ten and word in UNITS else times * _n_digits(word)
        times, after_ten = 1, word in TENS
    return DigitRun(n_digits, len(words) - start, is_open=times > 1)


def _is_number(word: str) -> bool:
    is_word = word in UNITS or word in TEENS or word in TENS
    return is_word or word in REPEATS or word in MAGNITUDES or _n_figures(word) > 0


def _n_figures(word: str) -> int:
    """Digits of a word of figures, as "555-0142"; 0 for any other."""
    return len(re.sub(r"\D", "", word)) if re.fullmatch(r"[+(]?\d[\d\-().,/]*", word) else 0


def _n_digits(word: str) -> int:
    if word in UNITS:
        return 1
    if word in TEENS or word in TENS:
        return 2
    return MAGNITUDES.get(word) or _n_figures(word)


def letters_at_end(words: Sequence[str]) -> str:
    """The letters that the words end in, as "ana" of "it's ana a n a"."""
    start = len(words)
    while start and ((len(words[start - 1]) == 1) or words[start - 1] in JOINTS | set(REPEATS)):
        start -= 1
    letters, times = "", 1
    for word in words[start:]:
        if word in REPEATS:
            times = REPEATS[word]
        elif len(word) == 1:
            letters, times = letters + times * word, 1
    return letters


# -- what is asked for -----------------------------------------------------------------------------

YES_NO_OPENERS = frozenset(
    "is are was were do does did can could would will should shall have has am may anything".split()
)
TAGS = frozenset("right correct okay yes no".split())  # "..., correct?" wants a yes or a no too
ORDERS = frozenset("tell give please spell say enter read repeat provide state share".split())
# "Could you tell me your number?" asks for the number.
REQUESTS = ("could you", "can you", "would you", "will you", "may i have", "can i have",
            "could i have", "may i get", "can i get", "could i get")  # fmt: skip
COUNTS = {word: n for n, word in enumerate("zero one two three four five six seven eight".split())}
N_DIGITS_OF = {
    "zip": 5, "postal": None, "phone": PHONE_DIGITS, "telephone": PHONE_DIGITS,
    "mobile": PHONE_DIGITS, "cell": PHONE_DIGITS, "pin": 4, "ssn": 9,
}  # fmt: skip
NUMBER_WORDS = frozenset("number digits code pin zip ssn".split()) | frozenset(N_DIGITS_OF)


def asked_in(reply: str, named: Sequence[AgentSlot] = ()) -> Slot | None:
    """What the agent's last sentence asks for; None where it asks nothing.

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


def named_in(reply: str, named: Sequence[AgentSlot]) -> AgentSlot | None:
    """Whose answer a reply asks for: the first whose words its last question has."""
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
    if {"day", "date", "birthday"}.intersection(words) and wants_value:
        return Slot(SlotKind.DATE)
    if " or " in said:
        return Slot(SlotKind.CHOICE, options=_options(words))
    if words and (words[0] in YES_NO_OPENERS or words[-1] in TAGS):
        return Slot(SlotKind.YES_NO)
    return Slot(SlotKind.OPEN)


def _n_digits_asked(words: tuple[str, ...]) -> int | None:
    """ "the last four digits", "your 16 digit card number"; else by the number's name."""
    for word, after in zip(words, words[1:], strict=False):
        if after in ("digit", "digits") and (word in COUNTS or word.isdecimal()):
            n_digits = COUNTS.get(word) or int(word[:3])
            return n_digits or None
    named = [N_DIGITS_OF[word] for word in words if word in N_DIGITS_OF]
    return named[0] if named else None


def _options(words: tuple[str, ...]) -> frozenset[str]:
    """The words on both sides of each "or"."""
    places = [index for index, word in enumerate(words) if word == "or"]
    beside = (words[index + step] for index in places for step in (-1, 1))
    return frozenset(word for index, word in zip(range(2 * len(places)), beside, strict=False))


# -- how far the answer has come -------------------------------------------------------------------


def progress(slot: Slot | None, words: Sequence[str]) -> Progress | None:
    """What the words (lower case) give and how far it has come; None: nothing that is counted.

    Dictation is known by its words too, so it need not have been asked for.
    """
    words = [part for word in words for part in _letters_apart(word)]
    while words and words[-1] in FILLERS:
        words.pop()
    kind = slot.kind if slot is not None else SlotKind.OPEN
    if not words:
        return Progress(kind, Answer.UNDER_WAY) if kind in DICTATED else None
    match kind:
        case SlotKind.NUMBER:
            assert slot is not None
            return _number(words, slot.n_digits, is_asked=True)
        case SlotKind.SPELLING:
            return _spelling(words, is_asked=True)
        case SlotKind.ADDRESS:
            return _address(words, is_asked=True) or _spelling(words, is_asked=False)
        case SlotKind.EMAIL:
            return Progress(kind, _email(words))
        case _:
            found = _answer(slot, words) if slot is not None else None
    if found is not None:
        return found
    return (
        _address(words, is_asked=False)
        or _spelling(words, is_asked=False)
        or _number(words, None, is_asked=False)
    )


def _letters_apart(word: str) -> list[str]:
    """ "j-a-n" is how some recognizers write three letters."""
    parts = re.split(r"[-.]", word)
    return parts if len(parts) > 1 and all(len(part) == 1 for part in parts) else [word]


def _number(words: Sequence[str], n_asked: int | None, *, is_asked: bool) -> Progress | None:
    run = digits_at_end(words)
    is_pronoun = words[-1] == "one" and len(words) > 1 and words[-2] in BEFORE_A_ONE
    if run.n_words == 1 and is_pronoun:
        return None  # "I don't have one"
    if not is_asked and run.n_digits < LEAST_RUN:
        return None
    if not run.n_digits and not run.is_open:
        return None  # "I don't have it here"
    n_whole = n_asked or PHONE_DIGITS
    if run.is_open:
        answer = Answer.UNDER_WAY
    elif run.n_digits >= n_whole:
        answer = Answer.COMPLETE
    elif n_asked is None and is_asked and run.n_digits >= LEAST_RUN:
        answer = Answer.PLAUSIBLE  # nobody said how many
    else:
        is_local = n_whole == PHONE_DIGITS and run.n_digits == LOCAL_DIGITS
        answer = Answer.PLAUSIBLE if is_local else Answer.UNDER_WAY
    return Progress(SlotKind.NUMBER, answer)


def _spelling(words: Sequence[str], *, is_asked: bool) -> Progress | None:
    letters = letters_at_end(words)
    if not is_asked and (len(letters) < LEAST_RUN or letters.isdecimal()):
        return None
    said_whole = len(letters) >= 2 and any(word == letters for word in words)
    if said_whole:
        return Progress(SlotKind.SPELLING, Answer.COMPLETE)
    if is_asked and not letters and len(words) > 1:
        return Progress(SlotKind.SPELLING, Answer.PLAUSIBLE)  # said instead
    return Progress(SlotKind.SPELLING, Answer.UNDER_WAY)


def _address(words: Sequence[str], *, is_asked: bool) -> Progress | None:
    """House number, street, its type, and what may follow: a unit, a town, a zip code."""
    types = [index for index, word in enumerate(words) if word in STREET_TYPES]
    numbers = [index for index, word in enumerate(words) if _is_number(word)]
    has_street = bool(types) and bool(numbers) and numbers[0] < types[-1] - 1
    if not is_asked and not has_street:
        return None
    if not has_street:
        return Progress(SlotKind.ADDRESS, Answer.UNDER_WAY) if numbers and not types else None
    after = words[types[-1] + 1 :]
    if after and (after[-1] in UNIT_WORDS or after[-1] in JOINTS):
        return Progress(SlotKind.ADDRESS, Answer.UNDER_WAY)
    is_whole = digits_at_end(after).n_digits >= LEAST_RUN
    return Progress(SlotKind.ADDRESS, Answer.COMPLETE if is_whole else Answer.PLAUSIBLE)


def _email(words: Sequence[str]) -> Answer:
    is_whole = "@" in words[-1] and "." in words[-1]
    is_said = ("at" in words or "@" in words) and words[-1].split(".")[-1] in MAIL_ENDS
    return Answer.COMPLETE if is_whole or is_said else Answer.UNDER_WAY


def _answer(slot: Slot, words: Sequence[str]) -> Progress | None:
    """Of the kinds that are answered in a word or two; None: these words are no such answer."""
    last, kind = words[-1], slot.kind
    match kind:
        case SlotKind.DATE:
            has_month = bool(MONTHS.intersection(words))
            is_day = last in DAYS or (has_month and (_is_number(last) or last in DAY_ORDINALS))
            if is_day:
                return Progress(kind, Answer.COMPLETE)
            return Progress(kind, Answer.UNDER_WAY) if last in MONTHS else None
        case SlotKind.TIME:
            if last in TIME_ENDS:
                return Progress(kind, Answer.COMPLETE)
            return Progress(kind, Answer.PLAUSIBLE) if _is_number(last) else None
        case SlotKind.QUANTITY:
            has_number = any(map(_is_number, words))
            return Progress(kind, Answer.PLAUSIBLE) if has_number else None
        case SlotKind.CHOICE:
            return Progress(kind, Answer.COMPLETE) if last in slot.options else None
    return None
