"""How a text says a word by its sounds: IPA between two marks, and the notations of the voices.

A lexicon writes `Nguyen = "/wɪn/"`; a voice is given "⟦wɪn⟧" in place of the word. General American
sounds are known, in the spellings that dictionaries use.
"""

import re

OPENS, CLOSES = "\u27e6", "\u27e7"  # no writing system has them, so no text says sounds by chance
# The sounds, and the owner's mark behind them.
MARKED = re.compile(rf"{OPENS}([^{OPENS}{CLOSES}\s]*){CLOSES}(['\u2019]s\b)?")
SIBILANTS, VOICELESS = ("s", "z", "S", "Z"), ("p", "t", "k", "f", "T")  # in espeak-ng's mnemonics
STRESS = {"\u02c8": ("\u02c8", "'"), "\u02cc": ("\u02cc", ",")}
# IPA: (hibari's and Kokoro's alphabet, espeak-ng's mnemonics).
VOWELS = {
    "e\u026a": ("A", "eI"), "a\u026a": ("I", "aI"), "a\u028a": ("W", "aU"),
    "\u0254\u026a": ("Y", "OI"), "o\u028a": ("O", "oU"), "\u0259\u028a": ("O", "oU"),
    "i\u02d0": ("i", "i:"), "u\u02d0": ("u", "u:"), "\u0251\u02d0": ("\u0251", "A:"),
    "\u0254\u02d0": ("\u0254", "O:"), "\u025c\u02d0": ("\u025c\u0279", "3:"),
    "\u025d": ("\u025c\u0279", "3:"), "\u025a": ("\u0259\u0279", "3"),
    "\u00e6": ("\u00e6", "a"), "a": ("\u00e6", "a"), "\u0251": ("\u0251", "A:"),
    "\u0252": ("\u0251", "A:"), "\u0254": ("\u0254", "O:"), "\u025b": ("\u025b", "E"),
    "e": ("\u025b", "E"), "\u026a": ("\u026a", "I"), "i": ("i", "i:"), "\u028a": ("\u028a", "U"),
    "u": ("u", "u:"), "\u028c": ("\u028c", "V"), "\u0259": ("\u0259", "@"),
    "\u025c": ("\u025c", "3:"), "o": ("O", "oU"),
}  # fmt: skip
CONSONANTS = {
    "t\u0283": ("\u02a7", "tS"), "d\u0292": ("\u02a4", "dZ"), "\u02a7": ("\u02a7", "tS"),
    "\u02a4": ("\u02a4", "dZ"), "\u03b8": ("\u03b8", "T"), "\u00f0": ("\u00f0", "D"),
    "\u0283": ("\u0283", "S"), "\u0292": ("\u0292", "Z"), "\u014b": ("\u014b", "N"),
    "\u0279": ("\u0279", "r"), "r": ("\u0279", "r"), "g": ("\u0261", "g"),
    "\u0261": ("\u0261", "g"),
    "\u027e": ("T", "t"), "\u0294": ("\u0294", "?"), "x": ("k", "k"), "j": ("j", "j"),
    **{one: (one, one) for one in "pbtdkfvszhmnlw"},
}  # fmt: skip
BETWEEN_SYLLABLES, TIE = ".", "\u0361"  # a tie joins the letters of one sound


def sounds(ipa: str) -> tuple[tuple[str, str], ...]:
    """Each sound of a word, as hibari and as espeak-ng write it; a stress stands before its vowel.

    Raises: ValueError naming the first character that is no sound known here, or no vowel at all.
    """
    found: list[tuple[str, str]] = []
    stress: tuple[str, str] | None = None
    ipa = ipa.replace(TIE, "")
    place = n_vowels = 0
    while place < len(ipa):
        for width in (2, 1):
            piece = ipa[place : place + width]
            if piece in VOWELS:
                found += (stress, VOWELS[piece]) if stress else (VOWELS[piece],)
                stress, n_vowels = None, n_vowels + 1
                break
            if piece in CONSONANTS:
                found.append(CONSONANTS[piece])
                break
            if piece in STRESS:
                stress = STRESS[piece]
                break
        else:
            if ipa[place] != BETWEEN_SYLLABLES:
                raise ValueError(f"expected IPA of American English, found {ipa[place]!r}")
            width = 1
        place += width
    if not n_vowels:
        raise ValueError(f"expected a vowel, found none in {ipa!r}")
    return tuple(found)


def as_hibari(match: re.Match[str]) -> str:
    """A marked word in hibari's alphabet, which Kokoro's is too; "" where it is no IPA."""
    said = _written(match[1], 0)
    return said and f"{OPENS}{said}{CLOSES}{match[2] or ''}"


def as_espeak(match: re.Match[str]) -> str:
    """A marked word in espeak-ng's mnemonics; it would name the letter of an "'s" behind them."""
    said = _written(match[1], 1)
    if said and match[2]:
        said += "I#z" if said.endswith(SIBILANTS) else "s" if said.endswith(VOICELESS) else "z"
    return said and f"[[{said}]]"


def _written(ipa: str, column: int) -> str:
    try:
        return "".join(sound[column] for sound in sounds(ipa))
    except ValueError:  # from outside a lexicon, which is checked: nothing to say
        return ""
