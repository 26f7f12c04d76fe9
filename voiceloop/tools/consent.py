"""Calls of tools that a caller has to allow first, and whether the caller has.

Owns the rules, the question that is said, and how the caller's next turn answers it. The rules
never ask the model: what it read may have told it what to say. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from voiceloop.agent import AgentTool
from voiceloop.backends import LANGUAGE
from voiceloop.tools.arguments import canonical, read_arguments
from voiceloop.tools.schema import checked

# Of a question, from its last word until the answer; and of a client, to answer its event.
ANSWER_S = 60.0
# Some 30 s of speech. A longer one is not asked, for nobody knows what they say yes to.
MAX_QUESTION_CHARS = 400
ASKED = (
    "not done yet: the caller is asked whether to. Where they say yes, call it again with the same "
    "arguments"
)
WAITS = "not done: another question has to be answered first"
NO = "not done: the caller said no"
UNCLEAR = "not done: the caller did not clearly say yes"
UNASKABLE = "not done: the caller would have to be asked, and cannot be"


@dataclass(frozen=True, slots=True)
class _Speech:
    """How one language asks, and answers. agreed: words that say yes; polite: beside them."""

    question: str
    agreed: str
    polite: str
    refused: str


# A turn is a yes where nothing but these words is left of it, and no where one refuses.
SPEECH = {
    "en": _Speech(
        "Shall I do this: {what}? Please say yes or no.",
        "go ahead|do it|do that|please do|of course|yes|yeah|yep|yup|sure|okay|ok|correct|right|"
        "exactly|absolutely|definitely",
        "please thanks thank you that that's is it i uh um well oh fine",
        "no nope nah not don't never stop cancel wait",
    ),
    "de": _Speech(
        "Soll ich das tun: {what}? Bitte sagen Sie ja oder nein.",
        "auf jeden fall|mach das|machen sie das|ja|jawohl|jo|genau|richtig|gerne|gern|okay|ok|klar|"
        "sicher|natürlich",
        "bitte danke das ist so äh ähm gut",
        "nein nee nö nicht kein keine stopp abbrechen warte warten",
    ),
    "fr": _Speech(
        "Dois-je le faire : {what} ? Répondez par oui ou non.",
        "d'accord|bien sûr|allez y|vas y|oui|ouais|okay|ok|exactement|volontiers",
        "s'il vous plaît te merci c'est ça euh bon",
        "non pas jamais arrête arrêtez attends attendez annulez",
    ),
    "es": _Speech(
        "¿Lo hago: {what}? Diga sí o no, por favor.",
        "por supuesto|de acuerdo|sí|si|claro|vale|okay|ok|correcto|exacto|adelante|hágalo|hazlo",
        "por favor gracias eso es eh bueno",
        "no nunca para pare espera espere cancela cancele",
    ),
    "it": _Speech(
        "Devo farlo: {what}? Dica sì o no, per favore.",
        "va bene|d'accordo|certo|sì|si|okay|ok|esatto|giusto|faccia|fallo",
        "per favore grazie è eh bene pure",
        "no non mai ferma aspetta aspetti annulla annulli",
    ),
    "pt": _Speech(
        "Devo fazer isto: {what}? Diga sim ou não, por favor.",
        "com certeza|pode fazer|sim|claro|okay|ok|certo|correto|exato|isso",
        "por favor obrigado obrigada é eh bem",
        "não nunca pare espera espere cancela cancele",
    ),
    "nl": _Speech(
        "Zal ik dit doen: {what}? Zeg alstublieft ja of nee.",
        "doe maar|natuurlijk|ja|jawel|okay|ok|klopt|precies|graag|zeker",
        "alstublieft alsjeblieft dank u je wel dat is eh goed",
        "nee niet geen nooit stop wacht annuleer",
    ),
}


class Answer(Enum):
    YES = "yes"
    NO = "no"
    UNCLEAR = "unclear"


def answer_of(text: str, language: str) -> Answer:
    """How the caller's words answer a question with yes or no."""
    speech = _speech_of(language)
    words = re.findall(r"[\w']+", text.lower().replace("’", "'"))
    if set(words) & set(speech.refused.split()):
        return Answer.NO
    left, n_agreed = re.subn(rf"\b(?:{speech.agreed})\b(?!')", " ", " ".join(words))
    is_clear = n_agreed > 0 and set(left.split()) <= set(speech.polite.split())
    return Answer.YES if is_clear else Answer.UNCLEAR


def question_of(tool: AgentTool, arguments: Mapping[str, Any], language: str) -> str:
    """Return what will be done, with every value, as a question; "" where that is too long to be
    said.
    """
    what = ", ".join((tool.name.replace("_", " "), *_spoken(arguments)))
    question = _speech_of(language).question.format(what=what)
    return question if len(question) <= MAX_QUESTION_CHARS else ""


class Turns(Protocol):
    """The caller's turns, as a conversation has them."""

    @property
    def newest_turn_id(self) -> str | None: ...

    def said_since(self, turn_id: str | None) -> str | None: ...


class NoTurns:
    """The turns of a caller who never speaks."""

    newest_turn_id: str | None = None

    def said_since(self, turn_id: str | None) -> str | None:
        return None


NO_TURNS = NoTurns()


@dataclass(frozen=True, slots=True)
class Verdict:
    """told: why a call is not made, "" where it may be. question: to be said to the caller."""

    told: str = ""
    question: str = ""


MAY = Verdict()


class Consent:
    """The consents of one session. language: the agent's. clock: in seconds."""

    def __init__(self, clock: Callable[[], float], turns: Turns, language: str = LANGUAGE) -> None:
        self._clock = clock
        self._turns = turns
        self._language = language
        self._call: tuple[str, str] | None = None  # that the caller was asked of
        self._turn_id: str | None = None  # after which that was
        self._asked_s = 0.0
        self._refused: tuple[tuple[str, str], str | None, str] | None = None
        self._has_read = False  # something that strangers may have written
        self._read_in: str | None = None  # turn

    def observe_result(self, tool: AgentTool) -> None:
        """The model is given what this tool has answered."""
        if tool.is_untrusted:
            self._has_read, self._read_in = True, self._turns.newest_turn_id

    def needs(self, tool: AgentTool) -> bool:
        """Whether a call of the tool, made now, has to be allowed."""
        if tool.confirm:
            return True
        has_read = self._has_read and self._read_in == self._turns.newest_turn_id
        return has_read and not tool.only_reads

    def verdict(self, tool: AgentTool, arguments: str) -> Verdict:
        """Return the verdict on a call that `needs` it. A yes counts for one call, with the
        arguments it was said to.

        Raises: ToolFailed: they are none that the tool takes.
        """
        given = checked(read_arguments(arguments), tool.parameters)
        call, turn_id = (tool.name, canonical(given)), self._turns.newest_turn_id
        if self._refused is not None and self._refused[:2] == (call, turn_id):
            return Verdict(self._refused[2])
        if call == self._call and self._clock() - self._asked_s <= ANSWER_S:
            said = self._turns.said_since(self._turn_id)
            if turn_id == self._turn_id:
                return Verdict(ASKED)
            self._call = None
            answer = Answer.UNCLEAR if said is None else answer_of(said, self._language)
            if answer is Answer.YES:
                return MAY
            told = NO if answer is Answer.NO else UNCLEAR
            self._refused = call, turn_id, told
            return Verdict(told)
        question = question_of(tool, given, self._language)
        return Verdict(ASKED, question) if question else Verdict(UNASKABLE)

    def note_asked(self, tool: AgentTool, arguments: str) -> None:
        """The question of this call has been said: the caller's next turn answers it."""
        given = checked(read_arguments(arguments), tool.parameters)
        self._call = tool.name, canonical(given)
        self._turn_id, self._asked_s = self._turns.newest_turn_id, self._clock()


def as_text(told: str) -> str:
    """Return the text for the model."""
    return json.dumps({"status": told}, ensure_ascii=False)


def _speech_of(language: str) -> _Speech:
    return SPEECH.get(language.lower().partition("-")[0], SPEECH["en"])


def _spoken(value: Any) -> list[str]:
    """Every value that is in it, each with its name."""
    match value:
        case dict():
            named = ((str(name).replace("_", " "), _spoken(one)) for name, one in value.items())
            return [f"{name} {', '.join(inner)}".strip() for name, inner in named]
        case list():
            return [text for one in value for text in _spoken(one)]
        case str():
            return [" ".join(value.split())]
    return [json.dumps(value)]
