"""User text as a streaming recognizer writes it: no case, no punctuation, spelled numbers, errors.

The errors imitate a small recognizer: fillers, dropped short words, words replaced by ones that
sound alike (same consonant skeleton), repeated beginnings.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable

from .lexicon import WORDS, split
from .wording import digit_words, number_words

FILLERS = ("uh", "um", "er", "well", "like", "so", "hmm", "let's see", "you know")
_CONFUSIONS = {word: split(heard) for word, heard in WORDS["confusions"].items()}
_NUMBERS = frozenset(
    [number_words(value) for value in (*range(20), *range(20, 100, 10))]
    + "hundred oh monday tuesday wednesday thursday friday saturday sunday today tomorrow".split()
)
_SHORT = frozenset("a an the is of to in on at do i my for it and".split())
_WORD = re.compile(r"[a-z0-9']+")


def spell_numbers(text: str, rng: random.Random) -> str:
    """Replace figures, times and prices by the words a caller says."""

    def money(match: re.Match[str]) -> str:
        words = number_words(int(match[1]))
        if match[2]:
            return f"{words} {number_words(int(match[2]))}" if int(match[2]) else f"{words} dollars"
        return f"{words} dollars"

    def clock_words(match: re.Match[str]) -> str:
        hour, minute = int(match[1]), int(match[2])
        if minute == 0:
            return number_words(hour)
        tens = f"oh {number_words(minute)}" if minute < 10 else number_words(minute)
        return f"{number_words(hour)} {tens}"

    def figure(match: re.Match[str]) -> str:
        digits = match[0]
        if len(digits) > 4 or digits.startswith("0"):
            return digit_words(digits, rng)
        value = int(digits)
        if 1900 <= value <= 2099:
            return f"{number_words(value // 100)} {number_words(value % 100)}"
        return number_words(value)

    text = re.sub(r"(\d),(\d{3})\b", r"\1\2", text)
    text = re.sub(r"\$(\d{1,4})(?:\.(\d\d))?\b", money, text)
    text = re.sub(r"\b(\d{1,2}):(\d\d)\b", clock_words, text)
    text = re.sub(
        r"(\d)\s*([ap])\.?\s?m\b\.?",
        lambda m: f"{m[1]} {m[2]} m" if rng.random() < 0.5 else f"{m[1]} {m[2]}m",
        text,
        flags=re.I,
    )
    text = re.sub(r"(\d)%", r"\1 percent", text)
    text = re.sub(r"(\d)(st|nd|rd|th)\b", r"\1", text)
    text = re.sub(
        r"\d{1,3}\.\d+",
        lambda m: (
            number_words(int(m[0].split(".")[0])) + " point " + digit_words(m[0].split(".")[1])
        ),
        text,
    )
    return re.sub(r"\d+", figure, text)


def skeleton(word: str) -> str:
    """A rough sound key: first sound and the consonants, voiced and unvoiced alike."""
    word = re.sub(r"(ph)", "f", word)
    word = re.sub(r"(ck|q|c(?![eiy]))", "k", word)
    word = re.sub(r"[bp]", "p", re.sub(r"[dt]", "t", re.sub(r"[gk]", "k", word)))
    word = re.sub(r"[sczx]", "s", re.sub(r"[fv]", "f", word))
    return word[:1] + re.sub(r"[aeiouyhw'](?!$)|[aeiouyhw']$", "", word[1:])


class RecognizerNoise:
    """Turns clean text into recognizer-style text. `vocabulary` feeds the sound-alike words."""

    def __init__(self, vocabulary: Iterable[str] = ()) -> None:
        sounds: dict[str, list[str]] = defaultdict(list)
        for word in vocabulary:
            if len(word) > 2:
                sounds[skeleton(word)].append(word)
        self._sounds = dict(sounds)

    def clean(self, text: str, rng: random.Random) -> str:
        """Lower case, no punctuation, spelled numbers; no errors."""
        text = spell_numbers(text, rng).lower().replace("-", " ").replace("&", " and ")
        return " ".join(_WORD.findall(text))

    def noisy(self, text: str, rng: random.Random, rate: float) -> str:
        """Clean, then disturb about `rate` of the words."""
        out: list[str] = []
        # A reply cannot know a number, a day or a name that was misheard: those stay.
        kept = _NUMBERS | {word.lower() for word in re.findall(r"(?<=[\w,] )[A-Z][\w']+", text)}
        words = self.clean(text, rng).split()
        for word in words:
            if word in kept:
                out.append(word)
                continue
            if rng.random() < rate * 0.4:
                out.append(rng.choice(FILLERS[:4] if rng.random() < 0.7 else FILLERS))
            if rng.random() >= rate:
                out.append(word)
                continue
            choice = rng.random()
            if choice < 0.3 and word in _SHORT:
                continue
            if choice < 0.38:
                out += [word, word]
            elif word in _CONFUSIONS:
                out.append(rng.choice(_CONFUSIONS[word]))
            else:
                out.append(rng.choice(self._sounds.get(skeleton(word), [word])))
        return " ".join(out) or self.clean(text, rng)
