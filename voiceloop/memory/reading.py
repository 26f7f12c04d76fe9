"""The facts in a turn: rules over the words of caller and agent.

Owns those rules. They hold for any model, and they only quote:
a fact is a stretch of what was said, with the question that it answers. English. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from voiceloop.memory.facts import Fact, FactKind, plain, quote

SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
WORD = re.compile(r"[\w'@.+-]*\w")
MAX_ANSWER_WORDS = 25  # a longer answer is a story: its sentences are read one by one

NUMBER_WORDS = frozenset(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety "
    "hundred thousand half quarter dozen first second third oh".split()
)
DATE_WORDS = frozenset(
    "monday tuesday wednesday thursday friday saturday sunday today tomorrow tonight noon midnight "
    "january february march april june july august september october november december "
    "morning afternoon evening o'clock am pm".split()
)
ASSENTS = (
    "yes", "yeah", "yep", "yup", "correct", "right", "exactly", "sure", "that's right",
    "that is right", "that's correct", "that is correct", "perfect", "sounds good", "okay", "ok",
)  # fmt: skip
DENIALS = frozenset("no nope not wrong but actually wait except instead".split())
FILLERS = frozenset(
    "yes yeah yep no nope okay ok sure please thanks thank you hi hello hey bye goodbye well um uh "
    "right great good fine that's all it is nothing else the a".split()
)
# Words that end a name which a recognizer wrote small.
AFTER_A_NAME = frozenset(
    "and but i i'm from at calling with speaking here please my for on to again is was the a an "
    "about in of or so if it that this".split()
)
AROUND_A_NAME = frozenset("my full first last name name's is this it's under i'm i am here".split())
NAME_SAID = re.compile(
    r"\b(?:my (?:full |first |last )?name(?:'s| is)|the name(?:'s| is)|under the name(?: of)?|"
    r"(?:it|that)(?:'s| is) under|call me)\s+(?P<name>.+)",
    re.IGNORECASE,
)
# "This is" and "I'm" begin much else: here the name must be written as one.
NAME_SHOWN = re.compile(
    r"\b(?:[Tt]his is|I'm|I am)\s+(?P<name>[A-Z][\w'-]+(?:\s+[A-Z][\w'-]+){0,2})"
)
# What has one answer: the newer one takes the place of the older. "Anything else?" has many.
ONE_ANSWER = re.compile(
    r"\b(?:your|which|when|where|what(?:'s| is) the|what (?:time|day|date|name|number|address)|"
    r"how many|who)\b",
    re.IGNORECASE,
)
NAME_ASKED = re.compile(r"\b(?:name|who am i speaking|who is (?:calling|this))\b", re.IGNORECASE)
OWN = re.compile(r"\b(?P<whose>my|our)\s+(?P<what>(?:[\w-]+\s+){0,3}[\w-]+?)(?:'s|\s+is|\s+are)\s",
                 re.IGNORECASE)  # fmt: skip
OF_THEMSELVES = re.compile(
    r"\b(?:i'm|i am|i've|i have|i need|i live|i work|i can't|i cannot|i don't|i prefer|i'd like|"
    r"i would like|i want|i'll have|i'd rather|i paid|i ordered|i booked|we're|we are|we have|"
    r"we need|we'd like|we want|we live|we paid|there will be|it's for|allergic)\b",
    re.IGNORECASE,
)
# "Two lattes for Maria. Is that right?": the question alone names nothing.
TAG = re.compile(r"(?:is (?:that|this|it)|does that|did i|have i|shall i|should i|right|correct)\b",
                 re.IGNORECASE)  # fmt: skip
PROMISED = re.compile(
    r"^(?:(?:okay|ok|great|sure|perfect|alright|all right|certainly|of course|yes|thanks?(?: you)?)"
    r"[,.!]?\s+)*(?:and\s+)?(?:(?:i|we)(?:'ll| will)|(?:(?:i|we)(?:'ve| have)(?: just)?|"
    r"you(?:'re| are)|your .{1,40} (?:is|are)) (?:booked|noted|reserved|added|put|changed|"
    r"cancelled|placed|ordered|sent|set|moved|written|confirmed|ready|on (?:its|their) way))\b",
    re.IGNORECASE,
)
PHONE = re.compile(r"(?:\d[\s().-]*){6,}")
MAIL = re.compile(r"\S+@\S+\.\w+|\b\w+\s+at\s+\w+(?:\s+\w+)?\s+dot\s+\w+\b", re.IGNORECASE)
LEAST_SPOKEN_DIGITS = 6  # in a row: a number that somebody may be called at, or an account's


@dataclass(frozen=True, slots=True)
class Asked:
    """The end of the agent's turn: its last sentence, and the one before that."""

    last: str = ""
    before: str = ""

    @classmethod
    def of(cls, text: str) -> Asked:
        sentences = [one for one in SENTENCE_END.split(plain(text)) if one]
        return cls(*reversed(sentences[-2:]))

    @property
    def question(self) -> str:
        return self.last if self.last.endswith("?") else ""

    @property
    def read_back(self) -> str:
        """Return what a yes would confirm, "" where that is nothing which can be told."""
        said = self.before if TAG.match(self.last) and not holds_value(self.last) else self.last
        return said if holds_value(said) else ""

    def answered_by(self, words: list[str]) -> str:
        """The question that these words answer, with what they deny of the sentence before."""
        denies = bool(words) and words[0] in DENIALS and holds_value(self.before)
        return f"{self.before} {self.question}" if denies and self.question else self.question


def facts_of_caller(text: str, asked: Asked) -> Iterator[Fact]:
    """asked: the end of the agent's turn before; empty where there was none."""
    sentences = [one for one in SENTENCE_END.split(plain(text)) if one]
    words = _words(text)
    question = asked.answered_by(words)
    name = next(filter(None, map(name_in, sentences)), "")
    if not name and NAME_ASKED.search(question):
        name = _short_name(text)
    if name:
        yield Fact(FactKind.NAME, f"The caller's name: {name}", "name")
    tells = [word for word in words if word not in FILLERS.union(_words(name))]
    if question and len(words) <= MAX_ANSWER_WORDS and not text.rstrip().endswith("?"):
        if tells:
            yield _answer(question, text)
        return
    introduction = FILLERS | AROUND_A_NAME | set(_words(name))
    for sentence in sentences:
        if name and introduction.issuperset(_words(sentence)):
            continue
        if (stated := _kind_of_statement(sentence)) is not None:
            yield Fact(stated, f"Caller: {quote(sentence)}", _subject(sentence))


def _answer(question: str, text: str) -> Fact:
    """Return the answer with the question, where the answer alone would not tell what it is
    about.
    """
    has_one = ONE_ANSWER.search(question) is not None
    is_denial = _words(text)[0] in DENIALS
    told = f"Agent: {quote(question)} Caller: {quote(text)}"
    if holds_contact(text):
        kind = FactKind.CONTACT
    elif has_one:
        kind = FactKind.ANSWER
    elif OF_THEMSELVES.search(text):
        kind = FactKind.OWN
        told = told if is_denial else f"Caller: {quote(text)}"
    else:
        kind = FactKind.REST
    return Fact(kind, told, " ".join(_words(question if has_one else told)))


def confirmed(text: str, asked: Asked) -> Fact | None:
    """Return what the agent read back, where these words of the caller confirm it."""
    words, read_back = _words(text), asked.read_back
    said = " ".join(words)
    is_assent = any(said == one or said.startswith(f"{one} ") for one in ASSENTS)
    if not is_assent or DENIALS.intersection(words) or not read_back:
        return None
    told = f"Agreed: {quote(read_back)}"
    return Fact(FactKind.CONFIRMED, told, read_back.lower())


def facts_of_agent(text: str) -> Iterator[Fact]:
    """Yield what it promised, or said that it had done."""
    for sentence in SENTENCE_END.split(plain(text)):
        if PROMISED.match(sentence) and not sentence.endswith("?"):
            yield Fact(FactKind.PROMISE, f"Agent: {quote(sentence)}", sentence.lower())


def name_in(sentence: str) -> str:
    """The name that somebody gives in it, "" where nobody does."""
    shown = NAME_SHOWN.search(sentence)
    if shown is not None:
        return shown["name"]
    said = NAME_SAID.search(sentence)
    return _short_name(said["name"]) if said is not None else ""


def holds_value(sentence: str) -> bool:
    """A number, a date, or a name inside the sentence."""
    words = sentence.split()
    small = {word.strip(".,!?;:").lower() for word in words}
    has_name = any(word[:1].isupper() and word[1:2].islower() for word in words[1:])
    return (
        has_name
        or any(letter.isdigit() for letter in sentence)
        or not small.isdisjoint(NUMBER_WORDS | DATE_WORDS)
    )


def holds_contact(text: str) -> bool:
    """A number to be reached at, or an e-mail address."""
    if PHONE.search(text) or MAIL.search(text):
        return True
    run = 0
    for word in _words(text):
        run = run + 1 if word in NUMBER_WORDS else 0
        if run >= LEAST_SPOKEN_DIGITS:
            return True
    return False


def _kind_of_statement(sentence: str) -> FactKind | None:
    words = _words(sentence)
    if sentence.endswith("?") or len(words) < 3:
        return None
    if holds_contact(sentence):
        return FactKind.CONTACT
    is_own = OF_THEMSELVES.search(sentence) or OWN.search(sentence)
    if is_own and any(word not in FILLERS for word in words):
        return FactKind.OWN
    return FactKind.REST if holds_value(sentence) and len(words) >= 4 else None


def _subject(sentence: str) -> str:
    """Return what a statement is about: "my X" where it says so, else all of it."""
    own = OWN.search(sentence)
    return own["what"].lower() if own is not None else sentence.lower()


def _short_name(text: str) -> str:
    """The words that a name is made of, at most three."""
    found: list[str] = []
    for word in re.split(r"\s+", plain(text)):
        bare = word.strip(".,!?;:")
        if not bare or bare.lower() in AFTER_A_NAME | FILLERS or not bare[0].isalpha():
            break
        found.append(bare)
        if len(found) == 3 or bare != word:
            break
    return " ".join(found)


def _words(text: str) -> list[str]:
    return [word.lower() for word in WORD.findall(text)]
