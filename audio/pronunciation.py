"""How a word is said, in the ARPAbet phones of the acoustic model.

Known words come from the wheel's CMU dictionary; others are asked of espeak-ng, whose phonemes
are mapped. A word that neither can tell has no pronunciation.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from .errors import MissingExtra
from .espeak_library import load_espeak

# espeak's ASCII phonemes (Kirshenbaum-like, en-us) to ARPAbet; longest first when read.
_PHONES = {
    "tS": "CH", "dZ": "JH", "eI": "EY", "aI": "AY", "aU": "AW", "OI": "OY", "oU": "OW",
    "i@": "IY AH", "e@": "EH R", "U@": "UH R", "A@": "AA R", "O@": "AO R", "o@": "AO R",
    "aI@": "AY ER", "aI3": "AY ER", "aU@": "AW ER", "3:": "ER", "I#": "IH", "I2": "IH",
    "a#": "AH", "@L": "AH L", "@2": "AH", "@5": "AH", "A:": "AA", "O:": "AO", "i:": "IY",
    "u:": "UW", "0#": "AA", "aa": "AE", "t2": "T", "d2": "D", "n-": "N", "l^": "L", "r-": "R",
    "O2": "AO", "i@3": "IH R", "@": "AH", "3": "ER", "a": "AE", "A": "AA", "E": "EH",
    "I": "IH", "i": "IY", "0": "AA",
    "O": "AO", "V": "AH", "U": "UH", "u": "UW", "o": "OW", "e": "EH", "b": "B", "d": "D",
    "D": "DH", "f": "F", "g": "G", "h": "HH", "j": "Y", "k": "K", "l": "L", "m": "M", "n": "N",
    "N": "NG", "p": "P", "r": "R", "s": "S", "S": "SH", "t": "T", "T": "TH", "v": "V", "w": "W",
    "x": "K", "z": "Z", "Z": "ZH", "*": "T", "R": "R", "C": "K", "Q": "K", "B": "V", "?": "",
}  # fmt: skip
_READ = re.compile("|".join(re.escape(p) for p in sorted(_PHONES, key=len, reverse=True)))


def pronounce(words: Iterable[str], dictionary: Path) -> dict[str, tuple[str, ...]]:
    """Pronunciations (phones joined by spaces) of lower-case words; those unknown are absent.

    dictionary: a file of lines "word phones", alternatives written word(2).
    """
    wanted = set(words)
    found: dict[str, list[str]] = {}
    with dictionary.open() as lines:
        for line in lines:
            entry, _, phones = line.strip().partition(" ")
            word = entry.partition("(")[0]
            if word in wanted:
                found.setdefault(word, []).append(phones)
    pronounced = {word: tuple(phones) for word, phones in found.items()}
    for word in wanted:
        if word not in pronounced and (spelled := spell_out(word)):
            pronounced[word] = (spelled,)
    return pronounced


def spell_out(word: str) -> str | None:
    """Phones of a word no dictionary has, by espeak-ng's rules; None without espeak-ng."""
    phonemes = _espeak_phonemes(word)
    return arpabet(phonemes) if phonemes else None


def arpabet(phonemes: str) -> str | None:
    """espeak's ASCII phonemes as ARPAbet phones; None if one has no counterpart."""
    phones: list[str] = []
    rest = re.sub(r"[',%=_:;|!~ -]*(?=$)|[',%=_;|!~ ]", "", phonemes)
    while rest:
        match = _READ.match(rest)
        if match is None:
            return None
        phones += _PHONES[match.group()].split()
        rest = rest[match.end() :].removeprefix(":").removeprefix("#").removeprefix("-")
    return " ".join(phones) or None


def _espeak_phonemes(word: str) -> str:
    try:
        return load_espeak().phonemes(word)
    except MissingExtra:
        return ""
