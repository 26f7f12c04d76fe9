"""Written text to words a voice reads rightly: numbers, times, money, units, symbols.

Each replacement remembers which characters of the source it stands for, so that the words a
voice reports can be told in positions of the text that was fed. English only.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from .phonemes import MARKED

_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth",
    "nine": "ninth", "twelve": "twelfth",
}  # fmt: skip
_CURRENCIES = {
    "$": ("dollar", "cent"), "\u20ac": ("euro", "cent"), "\u00a3": ("pound", "penny"),
}  # fmt: skip
_UNITS = {
    "oz": "ounce", "lb": "pound", "lbs": "pound", "kg": "kilogram", "g": "gram", "km": "kilometer",
    "cm": "centimeter", "mm": "millimeter", "ml": "milliliter", "mi": "mile", "min": "minute",
    "mins": "minute", "hr": "hour", "hrs": "hour", "mph": "mile per hour",
    "\u00b0c": "degree Celsius", "\u00b0f": "degree Fahrenheit", "\u00b0": "degree",
}  # fmt: skip
_ABBREVIATIONS = {
    "dr": "Doctor", "mr": "Mister", "mrs": "Missus", "ms": "Miz", "prof": "Professor",
    "e.g": "for example", "i.e": "that is", "etc": "et cetera", "vs": "versus",
    "approx": "approximately",
}  # fmt: skip
_SYMBOLS = {
    "&": "and", "@": "at", "#": "number", "+": "plus", "=": "equals", "%": "percent", "/": " ",
}  # fmt: skip
# A voice reads a lone "a" as the article; the name of the letter needs a spelling of its own.
_HALF_DAYS = {"a": "ay em", "p": "pee em"}


def _any_of(words: Iterable[str]) -> str:
    """A pattern for any of them, longest first; only ASCII letters have another case in it.

    Elsewhere ignoring case lets a dotless i stand for an i, which no table here has.
    """
    return "(?a:" + "|".join(map(re.escape, sorted(words, key=len, reverse=True))) + ")"


Spelling: TypeAlias = Callable[[re.Match[str]], str]  # what is said for what a rule found
_HALF_DAY = r"(?P<half>[ap])\.?m\b\.?"
_RULES: tuple[tuple[str, Spelling], ...] = (
    (
        r"(?P<sign>[$\u20ac\u00a3])\s?(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d\d))?(?![\d])",
        lambda m: _money(m["sign"], _int(m["whole"]), int(m["part"] or 0)),
    ),
    (
        rf"\b(?P<hour>[01]?\d|2[0-3]):(?P<minute>[0-5]\d)\b(?:\s?{_HALF_DAY})?",
        lambda m: _time(int(m["hour"]), int(m["minute"]), m["half"]),
    ),
    (
        rf"\b(?P<hour>1[0-2]|0?[1-9])\.(?P<minute>[0-5]\d)\s?{_HALF_DAY}",  # as the British do
        lambda m: _time(int(m["hour"]), int(m["minute"]), m["half"]),
    ),
    (
        rf"\b(?P<hour>1[0-2]|0?[1-9])\s?{_HALF_DAY}",
        lambda m: _time(int(m["hour"]), 0, m["half"]),
    ),
    (
        r"(?P<plus>\+\d{1,3}[\s.-]?)?(?:\(\d{3}\)\s?|\b\d{3}[\s.\u2013-])\d{3}[\s.\u2013-]\d{4}\b",
        lambda m: ("plus " if m["plus"] else "") + _digits(m[0]),
    ),
    (r"\b\d{3}(?:[-.\u2013]\d{3,4})+\b", lambda m: _digits(m[0])),
    (r"(?-i:\b[A-Z](?:-[A-Z])+\b)(?!-?\w)", lambda m: m[0].replace("-", " ")),  # a spelled name
    (
        r"\b(?P<n>[1-9])/(?P<of>[2-9]|10)\b(?![/\d])",
        lambda m: _fraction(m, int(m["n"]), int(m["of"])),
    ),
    (r"\b(?:0\d+|\d{5,})\b(?![.,]\d)", lambda m: _digits(m[0])),
    (r"(?<=[\dm.])\s?[-\u2013]\s?(?=\d)", lambda m: " to "),
    (r"\b(?P<n>\d{1,4})(?:st|nd|rd|th)\b", lambda m: ordinal_words(int(m["n"]))),
    (
        rf"\b(?P<n>\d+)\s?(?P<unit>{_any_of(_UNITS)})(?!\w)",
        lambda m: _quantity(int(m["n"]), m["unit"].lower()),
    ),
    (r"\b(?:1[1-9]|20)\d\d\b(?![.,]\d)", lambda m: _year(int(m[0]))),
    (
        r"(?P<whole>\d{1,3}(?:,\d{3})+|\d+)(?:\.(?P<part>\d+))?",
        lambda m: _beside_letters(m) or _number(_int(m["whole"]), m["part"]),
    ),
    (
        rf"\b{_any_of(_ABBREVIATIONS)}\.",
        lambda m: _ABBREVIATIONS[m[0][:-1].lower()],
    ),
    (r"[&@#+=%/]", lambda m: f" {_SYMBOLS[m[0]]} "),
    # Markup, emoji and other marks no voice can say.
    (r"[*_`~|<>\\^{}\[\]\u2022\u200d\ufe0f]|[^\u0000-\u024f\u2010-\u2026\u20ac]", lambda m: " "),
)
_SPOKEN_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_COMPILED = tuple((re.compile(pattern, re.I), spell) for pattern, spell in _RULES)


def _as_it_is(match: re.Match[str]) -> str:
    return match[0]


@dataclass(frozen=True, slots=True)
class NormalizedText:
    """text to speak, and where each of its stretches stands in the source.

    _starts: offsets in text where a stretch begins; _sources: (source start, source end,
    replaced) of each. An unreplaced stretch maps character by character.
    """

    text: str
    _starts: tuple[int, ...]
    _sources: tuple[tuple[int, int, bool], ...]

    def source_end(self, end: int) -> int:
        """Characters of the source that are spoken once text[:end] is.

        Within a replacement nothing of it counts as spoken before its last word has ended.
        """
        if not self._starts or end <= 0:
            return 0
        index = bisect_right(self._starts, end - 1) - 1
        start, stop, replaced = self._sources[index]
        if not replaced:
            return start + end - self._starts[index]
        next_start = self._starts[index + 1] if index + 1 < len(self._starts) else len(self.text)
        return stop if not self.text[end:next_start].strip() else start


def normalize(text: str, phonemes: Spelling = _as_it_is) -> NormalizedText:
    """text with everything spelled out that a voice would misread.

    phonemes: writes a word that is said by its sounds (`MARKED`) in the voice's own notation.
    """
    return _replaced(text, ((MARKED, phonemes), *_COMPILED))


def as_written(text: str, phonemes: Spelling = _as_it_is) -> NormalizedText:
    """text as it stands, for a voice of another language; phonemes: as for `normalize`."""
    return _replaced(text, ((MARKED, phonemes),))


def _replaced(text: str, rules: tuple[tuple[re.Pattern[str], Spelling], ...]) -> NormalizedText:
    pieces: list[str] = []
    starts: list[int] = []
    sources: list[tuple[int, int, bool]] = []
    length = taken = 0

    def add(piece: str, start: int, end: int, replaced: bool) -> None:
        nonlocal length
        if piece:
            pieces.append(piece)
            starts.append(length)
            sources.append((start, end, replaced))
            length += len(piece)

    found = [rule.search(text) for rule, _ in rules]
    while matches := [(m, spell) for m, (_, spell) in zip(found, rules, strict=True) if m]:
        match, spell = min(matches, key=lambda pair: pair[0].start())  # the first rule on a tie
        add(text[taken : match.start()], taken, match.start(), False)
        add(spell(match), match.start(), match.end(), True)
        taken = match.end()
        # A rule that matches further on needs no second search: the text is read once.
        found = [
            rule.search(text, taken) if m is not None and m.start() < taken else m
            for m, (rule, _) in zip(found, rules, strict=True)
        ]
    add(text[taken:], taken, len(text), False)
    return NormalizedText("".join(pieces), tuple(starts), tuple(sources))


def spoken_words(text: str) -> list[str]:
    """Lower-case words as a recognizer writes them, numbers spelled: "At 7pm!" -> at seven pm."""
    spoken = normalize(text).text.lower().replace("\u2019", "'")
    for read, heard in (("ay em", "am"), ("pee em", "pm")):
        spoken = spoken.replace(read, heard)
    return _SPOKEN_WORD.findall(spoken)


def number_words(n: int) -> str:
    """A whole number in words: 1250 -> "one thousand two hundred fifty"."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        return _TENS[n // 10] + (f" {_ONES[n % 10]}" if n % 10 else "")
    for scale, name in _SCALES:
        if n >= scale:
            head = f"{number_words(n // scale)} {name}"
            return head + (f" {number_words(n % scale)}" if n % scale else "")
    raise AssertionError("unreachable: every number from 100 on has a scale")


def ordinal_words(n: int) -> str:
    """A whole number's rank in words: 21 -> "twenty first"."""
    head, _, last = number_words(n).rpartition(" ")
    if last in _ORDINALS:
        last = _ORDINALS[last]
    else:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return f"{head} {last}".strip()


def _int(digits: str) -> int:
    return int(digits.replace(",", ""))


def _plural(n: int, noun: str) -> str:
    if n == 1:
        return noun
    if noun == "penny":
        return "pence"
    head, space, tail = noun.partition(" ")
    return f"{head}s{space}{tail}"


def _money(sign: str, whole: int, part: int) -> str:
    unit, small = _CURRENCIES[sign]
    amounts = []
    if whole or not part:
        amounts.append(f"{number_words(whole)} {_plural(whole, unit)}")
    if part:
        amounts.append(f"{number_words(part)} {_plural(part, small)}")
    return " and ".join(amounts)


def _time(hour: int, minute: int, half: str | None) -> str:
    words = [number_words(hour)]
    if minute:
        words.append(("oh " if minute < 10 else "") + number_words(minute))
    elif half is None:
        words.append("o'clock" if 1 <= hour <= 12 else "hundred hours")
    if half is not None:
        words.append(_HALF_DAYS[half.lower()])
    return " ".join(words)


def _digits(text: str) -> str:
    """Digits one by one, a pause where the writer grouped them.

    A semicolon's: behind a comma hibari says "415 555" so that Whisper hears one 5 less (of sixteen
    readings of eight telephone numbers twelve were whole with commas, fifteen with semicolons).
    """
    groups = re.findall(r"\d+", text)
    return "; ".join(" ".join(_ONES[int(d)] for d in group) for group in groups)


def _quantity(n: int, unit: str) -> str:
    return f"{number_words(n)} {_plural(n, _UNITS[unit])}"


def _fraction(match: re.Match[str], n: int, of: int) -> str:
    """1/2 -> one half, 2 3/4 -> two and three quarters; 5/4 stays two numbers."""
    if n >= of:
        return f"{number_words(n)} {number_words(of)}"
    part = {2: "half", 4: "quarter"}.get(of) or ordinal_words(of)
    follows_whole = match.string[: match.start()].rstrip()[-1:].isdigit()
    return f"{'and ' if follows_whole else ''}{number_words(n)} {_plural(n, part)}"


def _beside_letters(match: re.Match[str]) -> str:
    """A number joined to letters, as in BA2490 or 4B: apart from them, and long ones by digits.

    "" for a number that stands alone, or with no more than the s of "the 90s".
    """
    before = match.string[: match.start()][-1:].isalpha()
    after = re.match(r"(?!s\b)[^\W\d_]", match.string[match.end() :], re.I) is not None
    if not before and not after:
        return ""
    is_code = match["part"] is None and len(match["whole"]) > 2
    words = _digits(match[0]) if is_code else _number(_int(match["whole"]), match["part"])
    return f"{' ' if before else ''}{words}{' ' if after else ''}"


def _year(n: int) -> str:
    if 2000 <= n <= 2009 or n % 1000 == 0:
        return number_words(n)
    century, rest = divmod(n, 100)
    tail = "hundred" if not rest else ("oh " if rest < 10 else "") + number_words(rest)
    return f"{number_words(century)} {tail}"


def _number(whole: int, part: str | None) -> str:
    words = number_words(whole) if whole < 10**12 else _digits(str(whole))
    return f"{words} point {_digits(part)}" if part else words
