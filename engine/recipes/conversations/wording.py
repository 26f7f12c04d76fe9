"""Small pieces of English for the call generator: alternatives, numbers, times, lists, articles.

`expand` turns one template into one of many wordings: `(a|b|)` picks an alternative (nesting is
allowed, and the whole template may be one), `{slot}` is filled afterwards by `str.format`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_INNERMOST = re.compile(r"\(([^()]*)\)")
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
STOP_WORDS = frozenset(
    """a an the and or but if of to in on at for with from by is are was were be been am do does
    did have has had i you he she it we they me him her us them my your his its our their this
    that these those there here what which who when where how why not no yes can could will
    would shall should may might must just so as than then too very please thanks thank ok okay
    like want need get got any some all one more also about up out i'm i'd it's that's you're
    i'll let's don't""".split()
)
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def expand(rng: random.Random, template: str, **slots: str) -> str:
    """Pick one wording of a template and fill its slots; the first letter is capitalized."""
    template = f"({template})"
    while True:
        text, n_replaced = _INNERMOST.subn(lambda m: rng.choice(m.group(1).split("|")), template)
        template = text
        if not n_replaced:
            break
    template = re.sub(r"\bi\b(?![^{]*\})", "I", template)
    template = re.sub(r"([.?!] +)([a-z])", lambda m: m[1] + m[2].upper(), template)
    text = re.sub(r" +", " ", template.format(**slots)).strip(" ")
    text = re.sub(r" ([,.?!])", r"\1", text)
    return text[:1].upper() + text[1:]


def number_words(value: int) -> str:
    """Spell an integer from 0 to 9999, as a recognizer writes it."""
    if value < 20:
        return _ONES[value]
    if value < 100:
        tens, ones = divmod(value, 10)
        return _TENS[tens] + (f" {_ONES[ones]}" if ones else "")
    if value < 1000:
        hundreds, rest = divmod(value, 100)
        return f"{_ONES[hundreds]} hundred" + (f" {number_words(rest)}" if rest else "")
    thousands, rest = divmod(value, 1000)
    return f"{number_words(thousands)} thousand" + (f" {number_words(rest)}" if rest else "")


def digit_words(digits: str, rng: random.Random | None = None) -> str:
    """Spell digits one by one; a generator lets zero also be said as `oh`."""
    zero = "oh" if rng is not None and rng.random() < 0.3 else "zero"
    return " ".join(zero if d == "0" else _ONES[int(d)] for d in digits if d.isdigit())


def join(parts: Sequence[str], last: str = "and") -> str:
    """Join a list as it is spoken: `a, b and c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {last} {parts[-1]}"


def article(noun: str) -> str:
    """Put `a` or `an` before a noun phrase."""
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


def plural(noun: str) -> str:
    if noun.endswith(("s", "sh", "ch", "x")):
        return noun if noun.endswith("s") else noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def counted(count: int, noun: str, one: str = "one") -> str:
    """`one latte`, `two lattes`."""
    return f"{one} {noun}" if count == 1 else f"{number_words(count)} {plural(noun)}"


def clock(hour: int, minute: int, style: str) -> str:
    """Write a time of day. style: `am`, `am_tight`, `a.m.`, `words`, or `24`."""
    half = "am" if hour < 12 else "pm"
    twelve = hour % 12 or 12
    figure = f"{twelve}:{minute:02d}" if minute else str(twelve)
    match style:
        case "am":
            return f"{figure} {half}"
        case "am_tight":
            return f"{figure}{half}"
        case "a.m.":
            return f"{figure} {half[0]}.m."
        case "words":
            spoken = number_words(twelve) + (f" {number_words(minute)}" if minute else "")
            part = (
                "in the morning"
                if hour < 12
                else ("in the afternoon" if hour < 17 else "in the evening")
            )
            return f"{spoken} {part}"
        case "24":
            return f"{hour}:{minute:02d}"
    raise ValueError(f"expected a clock style, found {style!r}")
