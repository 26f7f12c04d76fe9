"""Consent to a recording: the notice or question to the caller, and the answer.

Owns the states of one call's consent, and the sentences. Pure.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple

from voiceloop.telemetry.tap import Consent
from voiceloop.tools.consent import Answer, answer_of

How = Literal["none", "announced", "asked"]


class ConsentState(Enum):
    """The state of one call's consent. Only in `GIVEN` anything is kept."""

    OWED = "owed"  # the caller has not been told yet
    ASKED = "asked"
    GIVEN = "given"
    REFUSED = "refused"


class _Words(NamedTuple):
    told: str
    asked: str
    again: str
    given: str
    refused: str


WORDS = {
    "en": _Words(
        "This call is recorded.",
        "May I record this call? Please say yes or no.",
        "Sorry, may I record this call: yes or no?",
        "Thank you.",
        "This call is not recorded.",
    ),
    "de": _Words(
        "Dieses Gespräch wird aufgezeichnet.",
        "Darf ich dieses Gespräch aufzeichnen? Bitte sagen Sie ja oder nein.",
        "Entschuldigung, darf ich aufzeichnen: ja oder nein?",
        "Danke.",
        "Dieses Gespräch wird nicht aufgezeichnet.",
    ),
    "fr": _Words(
        "Cet appel est enregistré.",
        "Puis-je enregistrer cet appel ? Répondez par oui ou non.",
        "Pardon, puis-je enregistrer cet appel : oui ou non ?",
        "Merci.",
        "Cet appel n'est pas enregistré.",
    ),
    "es": _Words(
        "Esta llamada se graba.",
        "¿Puedo grabar esta llamada? Diga sí o no, por favor.",
        "Perdone, ¿puedo grabar esta llamada: sí o no?",
        "Gracias.",
        "Esta llamada no se graba.",
    ),
}
FALLBACK = "en"  # an operator names the sentence of any other language
YES_DIGIT, NO_DIGIT = "1", "2"
MAX_UNCLEAR = 2  # then it counts as a no


class CallConsent(Consent):
    """One call's. words: the operator's own sentence; greeting: said once the caller has answered.

    state: GIVEN from the start where nobody is to be told.
    """

    def __init__(self, how: How, language: str, words: str, greeting: str) -> None:
        self.how = how
        self.state = ConsentState.GIVEN if how == "none" else ConsentState.OWED
        self.words = ""  # that the caller agreed by
        self._language = language.partition("-")[0].lower()
        self._said = WORDS.get(self._language, WORDS[FALLBACK])
        own = self._said.asked if how == "asked" else self._said.told
        self._own = words or own
        self._greeting = greeting
        self._n_unclear = 0

    @property
    def first_words(self) -> str:
        """Told before all else, the greeting behind it; asked alone, for it wants an answer."""
        match self.how:
            case "none":
                return ""
            case "announced":
                return f"{self._own} {self._greeting}".strip()
        return self._own

    def begin(self) -> None:
        """The first words are being said."""
        if self.state is ConsentState.OWED:
            is_told = self.how == "announced"
            self.state = ConsentState.GIVEN if is_told else ConsentState.ASKED

    def answer(self, said: str) -> str | None:
        """Return what is said to the caller's answer; None where none is waited for."""
        if self.state is not ConsentState.ASKED:
            return None
        match self._verdict(said):
            case ConsentState.GIVEN:
                return f"{self._said.given} {self._greeting}".strip()
            case ConsentState.REFUSED:
                return f"{self._said.refused} {self._greeting}".strip()
        return self._said.again

    def observe(self, said: str) -> None:
        """The caller's turn of these words is over."""
        if self.state is not ConsentState.ASKED:
            return
        self.state = self._verdict(said)
        self._n_unclear += 1
        if self.state is ConsentState.GIVEN:
            self.words = said

    def _verdict(self, said: str) -> ConsentState:
        if said.strip() in (YES_DIGIT, NO_DIGIT):
            return ConsentState.GIVEN if said.strip() == YES_DIGIT else ConsentState.REFUSED
        match answer_of(said, self._language):
            case Answer.YES:
                return ConsentState.GIVEN
            case Answer.NO:
                return ConsentState.REFUSED
        is_last = self._n_unclear + 1 >= MAX_UNCLEAR
        return ConsentState.REFUSED if is_last else ConsentState.ASKED
