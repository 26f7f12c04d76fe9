"""The lines that open a reply while its words are late, and what keeps them from saying anything.

Owns the lines of each language, and the rule for an agent's own: eight words at the most that
answer, promise, count and name nothing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from voiceloop.errors import ConfigError

MOST_WORDS = 8
NONE = "-"  # an agent's list of this alone says none
SLOT = "{slot}"

OPENERS: Mapping[str, tuple[str, ...]] = {
    "en": (
        "Let me check that for you.",
        "Let me have a look.",
        "Just a moment, let me see.",
        "Let me look into that.",
        "Give me a moment to check.",
        "Let me think about that.",
        "I am having a look now.",
        f"About the {SLOT}, let me see.",
    ),
    "de": (
        "Da schaue ich gleich nach.",
        "Moment, ich sehe das nach.",
        "Lassen Sie mich kurz nachsehen.",
        "Ich schaue mir das an.",
        "Da muss ich kurz schauen.",
        "Lassen Sie mich kurz überlegen.",
    ),
    "es": (
        "Déjeme que lo mire.",
        "Un momento, lo estoy mirando.",
        "Voy a mirarlo ahora.",
        "Déjeme pensar un momento.",
        "Permítame que lo compruebe.",
        "Enseguida lo miro.",
    ),
    "fr": (
        "Laissez-moi regarder.",
        "Je regarde tout de suite.",
        "Un instant, je vérifie.",
        "Laissez-moi vérifier cela.",
        "Je jette un œil.",
        "Laissez-moi réfléchir un instant.",
    ),
}
# What would answer, promise, count or refuse.
COMMITTING: Mapping[str, frozenset[str]] = {
    "en": frozenset(
        "yes yeah yep no nope not none never sure okay ok right correct course certainly "
        "absolutely definitely indeed agreed done booked great can can't cannot won't don't zero "
        "two three four five six seven eight nine ten eleven twelve dozen hundred thousand".split()
    ),
    "de": frozenset(
        "ja nein nicht kein keine nie gern gerne klar natürlich sicher richtig genau stimmt okay "
        "zwei drei vier fünf sechs sieben acht neun zehn elf zwölf hundert tausend".split()
    ),
    "es": frozenset(
        "sí si no nunca claro vale seguro correcto exacto dos tres cuatro cinco seis siete ocho "
        "nueve diez once doce cien mil".split()
    ),
    "fr": frozenset(
        "oui non pas jamais bien sûr entendu exact exactement accord deux trois quatre cinq six "
        "sept huit neuf dix onze douze cent mille".split()
    ),
}
WORD = re.compile(r"[\w'’-]+")


def words_of(line: str) -> list[str]:
    """Return its words in small letters."""
    return WORD.findall(line.lower().replace("’", "'"))


def commits(line: str, language: str) -> str | None:
    """The word of the line by which it says more than an opener may; None where none does."""
    code = language.partition("-")[0].lower()
    banned = COMMITTING.get(code, frozenset())
    spoken = words_of(line.replace(SLOT, ""))
    return next((one for one in spoken if one in banned or any(map(str.isdigit, one))), None)


def openers_of(given: Sequence[str], language: str) -> tuple[str, ...]:
    """The agent's, else those of its language that ship; none where it has none.

    Raises: ConfigError: one of them is too long, or commits to something.
    """
    if tuple(given) == (NONE,):
        return ()
    for index, line in enumerate(given):
        where = f"waiting.openers[{index}]: expected"
        if (n_words := len(words_of(line))) > MOST_WORDS:
            raise ConfigError(f"{where} {MOST_WORDS} words at the most, found {n_words}: {line!r}")
        if (word := commits(line, language)) is not None:
            raise ConfigError(f"{where} words that commit to nothing, found {word!r} in {line!r}")
    return tuple(given) or OPENERS.get(language.partition("-")[0].lower(), ())
