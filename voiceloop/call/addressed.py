"""The addressee of a caller's words: the agent, the agent who is asked to wait, or somebody in the
room.

Owns the wording beside the words of the agent's file: English, and in short German, Spanish and
French. How loud a voice is and what it sounds like is judged elsewhere. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voiceloop.backends import LANGUAGE
from voiceloop.slots.numbers import FILLERS

# What the caller goes to do, of their own: "I need to find my card", but not "can I get a large
# one", "I think it's Tuesday", "I want to check my balance", which are for the agent.
FETCHES = re.compile(
    r"\b(?:let me|i'll|i will|i'm|i am|while i|i (?:just |really )?(?:need|have|got) to|i must)"
    r"(?: just)? (?:(?:find|get|grab|fetch|pull|open|check|ask|look|see)(?:[tb]?ing)?"
    r"(?: (?:up|out|for|at|in|on))? (?:it|that|them|him|her|my (?!balance|order|account)\w+|"
    r"a pen|a pencil|some paper|something to write)\b(?: \w+){0,2}|"
    r"(?:think|look|check|see)(?: quick| quickly)?)$"
)
LONGEST_ASIDE = 10  # words: who says more to somebody else has put the telephone down
LONGEST_WITH = 4  # "on the phone with the bank"


@dataclass(frozen=True, slots=True)
class Wording:
    """The words of a language. hold, stop, backchannels: added to those of `BargeIn` where the
    agent's file leaves them as they are. softeners: all that stands beside a request to wait, or
    behind an aside; who says more has a wish of their own ("I'll be right there, what's the
    address?"). names: who is called so stands in the room with the caller, over the agent only, for
    "thanks, dear" is said to agents, too. talked_of: before such a word they are talked of ("it's
    for my dad"). aside: said to somebody who does not hear the call; what an agent may be told as
    well ("leave it at the door") is not among it. over_agent: an aside, but in silence an answer to
    the agent. called_to: behind a call at the beginning ("mom, I'm on the phone", not "kids menu").
    """

    hold: tuple[str, ...]
    stop: tuple[str, ...]
    backchannels: frozenset[str]
    softeners: frozenset[str]
    names: frozenset[str]
    talked_of: frozenset[str]
    aside: re.Pattern[str]
    over_agent: re.Pattern[str]
    called_to: frozenset[str] = frozenset()


ENGLISH = Wording(
    (), (), frozenset(),
    FILLERS
    | frozenset(
        "a an the for me please ok okay sure alright sorry oh no yes yeah can could would you "
        "second seconds sec minute minutes moment so there just give and now right in".split()
    ),
    frozenset(
        "honey hun sweetie sweetheart darling dear baby babe buddy kiddo kids mom mommy mum mummy "
        "mama dad daddy papa grandma grandpa".split()
    ),
    frozenset(
        "a an the my our your his her their its this that for to with without of from and or by at "
        "in on about like is are was be no some any more extra much many call called name "
        "named".split()
    ),
    re.compile(
        r"\b(?:(?:i'm|i am|we're|we are) (?:still )?(?:on the (?:phone|telephone)|on a call)|"
        r"(?:i'm|i am) talking to (?:someone|somebody)|(?:i'll|i will) be right (?:there|over)|"
        r"ask your (?:mother|father|mom|mum|dad|sister|brother)\b.*)(?= |$)"
    ),
    re.compile(r"\bnot (?:right )?now\b|^(?:\w+ )?come here\b"),
    frozenset(
        "i i'm i'll not no wait stop come go can could would will do don't did please look listen "
        "what where who are you it's that's just one give ask put get turn leave be".split()
    ),
)  # fmt: skip
WORDINGS: Mapping[str, Wording] = {
    "en": ENGLISH,
    "de": Wording(
        ("moment", "augenblick", "warte", "warten sie", "sekunde", "minute", "bleiben sie dran"),
        ("stopp", "stop", "halt", "warte", "warten sie", "entschuldigung"),
        frozenset("ja genau richtig gut okay ok mhm aha hm verstehe klar alles".split()),
        frozenset("bitte mal kurz eben nur noch ein einen eine ja nein ok okay äh ähm".split()),
        frozenset("schatz schatzi liebling mama mami papa papi oma opa kinder".split()),
        frozenset(
            "der die das den dem des ein eine einen einem einer mein meine meinen meinem meiner "
            "dein deine sein seine ihr ihre unser unsere für von mit zu zum zur und oder als wie "
            "bei heißt namens kein keine".split()
        ),
        re.compile(
            r"\b(?:ich bin (?:gerade |grad )?am (?:telefon|apparat)|ich telefoniere|ich komme "
            r"gleich|frag (?:mama|papa|deine? \w+|deinen \w+))(?= |$)"
        ),
        re.compile(r"\b(?:nicht jetzt|jetzt nicht)\b|^komm her\b"),
    ),
    "es": Wording(
        ("un momento", "un momentito", "un segundo", "un minuto", "espere", "espera",
         "no cuelgue", "déjeme ver"),
        ("pare", "espera", "espere", "perdone", "perdón"),
        frozenset("sí si vale claro ajá mhm hm bien entiendo bueno exacto okay ok".split()),
        frozenset("por favor un una solo me eh sí no vale".split()),
        frozenset("cariño cielo amor mamá mami papá papi abuela abuelo niños".split()),
        frozenset(
            "el la los las un una mi mis tu tus su sus para por con de del a al y o como no".split()
        ),
        re.compile(
            r"\b(?:estoy (?:hablando )?(?:por|al) teléfono|pregúntale a (?:mamá|papá|tu \w+))"
            r"(?= |$)"
        ),
        re.compile(r"\bahora no\b|^ven aquí\b"),
    ),
    "fr": Wording(
        ("un instant", "un moment", "une seconde", "une minute", "attendez", "attends",
         "ne quittez pas", "patientez"),
        ("stop", "arrêtez", "attendez", "attends", "pardon", "excusez-moi"),
        frozenset("oui ouais d'accord ok okay hm mhm bien voilà exact".split()),
        frozenset("s'il vous plaît te juste un une euh oui non".split()),
        frozenset("chéri chérie maman papa mamie papi".split()),
        frozenset(
            "le la les un une mon ma mes ton ta tes son sa ses notre votre pour par avec de du des "
            "à au et ou comme pas".split()
        ),
        re.compile(
            r"\b(?:je suis (?:au téléphone|en ligne)|j'arrive|demande à (?:maman|papa|t(?:a|on) "
            r"\w+))(?= |$)"
        ),
        re.compile(r"\bpas maintenant\b|^viens ici\b"),
    ),
}  # fmt: skip


def wording_of(language: str) -> Wording | None:
    """Return the words of a language; None: nobody knows them."""
    return WORDINGS.get(language.partition("-")[0].lower() or LANGUAGE)


# "Shall I wait?" has the agent wait.
AGENT_WAITS = re.compile(r"\b(?:me to|i|we) (?:wait|hold)\b")


def asks_to_wait(
    words: Sequence[str], hold_words: Sequence[str], wording: Wording | None = ENGLISH
) -> bool:
    """Whether these words (small letters) are a request to wait and hardly more."""
    said = " ".join(words)
    asked = [phrase for phrase in hold_words if f" {phrase} " in f" {said} "]
    if not asked:
        return False
    fetches = FETCHES.search(said.removesuffix(" please"))
    beside = f" {said if fetches is None else said[: fetches.start()]} "
    for phrase in sorted(asked, key=len, reverse=True):
        beside = beside.replace(f" {phrase} ", " ")
    known = wording or ENGLISH
    return (known.softeners | known.names).issuperset(beside.split())


def offers_to_wait(said: str, hold_words: Sequence[str]) -> bool:
    """Whether the agent has asked at last whether the caller will wait: the answer is one."""
    line = re.split(r"[.!?]\s+", said.strip().lower())[-1]
    words = " ".join(["", *re.findall(r"[^\W_]+", line), ""])
    is_asked = any(f" {phrase} " in words for phrase in (*hold_words, "wait", "hold"))
    return is_asked and line.endswith("?") and AGENT_WAITS.search(words) is None


def is_aside(words: Sequence[str], *, over_agent: bool, wording: Wording | None = ENGLISH) -> bool:
    """Whether the words (small letters) show that somebody else is spoken to."""
    said = [word for word in words if word not in FILLERS]
    if wording is None or not said or len(said) > LONGEST_ASIDE:
        return False
    line = " ".join(said)
    if over_agent and (_calls_somebody(said, wording) or wording.over_agent.search(line)):
        return True
    if (aside := wording.aside.search(line)) is None:
        return False
    behind = line[aside.end() :].split()
    is_with = behind[:1] == ["with"] and len(behind) <= LONGEST_WITH
    return is_with or (wording.softeners | wording.names).issuperset(behind)


def _calls_somebody(said: Sequence[str], wording: Wording) -> bool:
    if len(said) < 2:  # an answer as well: "adults or kids?"
        return False
    begins = said[0] in wording.names and said[1] in wording.called_to
    return begins or (said[-1] in wording.names and said[-2] not in wording.talked_of)
