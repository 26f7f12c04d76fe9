"""Facts of the business in an agent's instructions, and the sentence that answers a question.

Owns which sentences are facts, and when one of them is an answer: its words are most of those that
the question turns on. A small model garbles what it is asked to repeat; a sentence that its author
wrote is right. English. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log

from voiceloop.knowledge.hours import DAY, DAYS, NUMBER, OPEN, TIME, opening_hours, tells_hours
from voiceloop.knowledge.passages import SENTENCE_END
from voiceloop.knowledge.words import EMPTY, stem, stems_of, words_of

# Of the words that a question turns on, by how rare they are, so many stand in the sentence that
# answers it. Chosen: one of two is as often another subject.
LEAST_SHARE = 0.6
MAX_QUESTION_WORDS = 16  # a longer turn is a story, and the model's
MAX_TOLD = 3  # values of a tool's result
DONT_KNOW = "I'm sorry, I don't know that. What else can I do for you?"
DONT_HAVE = "I'm sorry, as far as I know we don't have any. What else can I do for you?"
LEAST_FACTS = 2  # a single one is no business: what else there is to know the model may
MAX_LISTED = 7  # things of a list that is read out

PRICE = re.compile(
    r"[$€£] ?\d+(?:\.\d+)?|\d+(?:\.\d+)? (?:dollars?|euros?|cents?|pounds?)\b(?: \d\d\b)?", re.I
)
# Where one thing of a list of prices ends.
NEXT_ENTRY = re.compile(r"[,;]\s+(?:and )?|(?:(?<=\d)|(?<=\))|(?<=dollars))\s+and |\s+and (?=an? )")
LIST_HEAD = re.compile(r"^(?:we (?:sell|serve|offer|have|rent))\s+", re.I)
# Of a list: it need not end in a mark, and what follows it is indented where it is of it.
LINE = re.compile(r"(?:^|\n)\s*[-*•]\s+|\n\s*\n")
LISTED = re.compile(r"^[ \t]*[-*•][ \t].*(?:\n[ \t]+(?![-*•]).*)*$", re.M)
COSTS = re.compile(rf"{PRICE.pattern}|\bfree\b|\bno charge\b", re.I)
# What tells the agent how to be and what to do, and no caller anything.
ORDER = re.compile(
    r"(?:you (?:help|answer|take|sit|talk|speak|work|book|look|say|never|must)|"
    r"(?:answer|ask|do not|don't|never|always|be|keep|use|speak|say|tell|offer|look|add|repeat|"
    r"confirm|once|before|if (?:you|the|a|they|somebody))\b)",
    re.I,
)
IDENTITY = re.compile(r"you(?: a|')re\b", re.I)
NAME = re.compile(r"\bYou(?: a|')re ([A-Z][\w'-]*)")
TITLE = re.compile(r"\b(Mr|Mrs|Ms|Dr|St|No)\.\s")
ASKS = frozenset(
    "what what's whats when when's where where's who who's whose which how how's why is are am do "
    "does did can could may will would have has must should isn't aren't don't from until".split()
)
DOUBTS = frozenset("do does can could is are have".split())  # lead to a yes or a no
REQUESTS = frozenset("can could would will may should".split())  # to do something, perhaps
# Begin a turn without being of it.
LEADS = frozenset(
    "and so but well okay ok um uh er oh hi hello hey please also then yes yeah no right alright "
    "actually wait stop sorry thanks great".split()
)
FILLERS = frozenset("uh um er".split())
WONDERS = re.compile(
    r"\b(?:i(?:'d| would) like to know|i want(?:ed)? to (?:ask|know)|i(?: was|'m)? wonder(?:ing)?|"
    r"(?:(?:can|could) you )?tell me|do you know)( if| whether)? "
)
COST = frozenset("cost costs price prices charge charges fee fees pay expensive dollars".split())
PLACE = frozenset("where where's address located location".split())
OF_PLACE = re.compile(
    r"\b(?:street|avenue|road|square|lane|near|next to|behind|above|across|opposite|beside|corner|"
    rf"find (?:us|you)|between (?!{TIME}).+ and)\b",
    re.I,
)
PAYS_BY = re.compile(
    r"\b(?:cards?|cash|che(?:ck|que)s?|credit)\b|^how (?:can|do) (?:i|we) pay", re.I
)
IS_PAID = re.compile(r"\b(?:pay|payment|accept|take)\b", re.I)
# Asked of what there is: a sentence that names it need not say so.
OFFERS = frozenset("sell sells offer offers serve give gives rent teach make buy have got".split())
SELLS = re.compile(rf"\b(?:you|they) (?:also |still )?(?:{'|'.join(sorted(OFFERS))})\b")
# Not "are there any nuts in it": nobody is to be told that there are none.
IS_OFFERED = re.compile(
    r"\b(?:do|have) you (?:have|got|sell|offer|serve|do)\b|\bis there an?\b|"
    r"^(?:what|which) .*\b(?:have|got|there)\b"
)
# Such a question asks for all that there is; it is made of these words.
ALL_OF_IT = frozenset(
    "services products things menu offer sell serve else courses prices options order list".split()
)
HEADS_LIST = re.compile(r"(?:on )?(?:the |our )?(?:menu|services|we (?:sell|offer|serve))\b", re.I)
# Of what was said in the call, for so many or at a time: the model's, and its tools'.
OF_CALL = re.compile(
    r"\b(?:again|my name|(?:my|the) (?:number|order|bill|booking)|what (?:did|have) (?:i|you)|"
    r"what was|(?:what|how) about|(?:what|which) (?:place|business|company)|i reach|"
    rf"(?:can|could) we (?:do|make|say|change)|(?:at|for) (?:\d+|{NUMBER})|"
    rf"(?:\d+|{NUMBER}) people)\b"
)
SUMS = re.compile(r"\b(?:total|together|altogether|add up)\b")
OF_TODAY = re.compile(r"\b(?:today|tonight|tomorrow|now)\b")
# A sentence of its own: "if it is Monday" tells of no day.
IS_TODAY = re.compile(
    rf"(?:^|[^\w\s]\s+)(?:today is|it is|it's) ({DAY})\s*(?:[^\w\s]|$)", re.I | re.M
)
# How a question begins, and what an answer to it has in it.
LASTS = r"\b(?:minute|hour|day|week|month|year|evening)s?\b"
KINDS = tuple(
    (re.compile(rf"\b(?:{asked})\b"), re.compile(answer))
    for asked, answer in (
        ("how long|how fast|how soon|how quickly", rf"{LASTS}|\bsince \d"),
        ("how far ahead|how far in advance|how early", LASTS),
        ("how often", r"\b(?:every|once|twice|times|daily|weekly|a (?:day|week|month|year))\b"),
        ("how old|what age|which age", r"\b(?:age|ages|aged|years?|old)\b"),
        ("how far", r"\b(?:miles?|kilomet\w+|km|minutes?|far)\b"),
        (
            "who|who's|'s name",
            rf"(?<=[a-z,] )(?!(?i:{DAY}))(?:Mr|Mrs|Ms|Dr|[A-Z][a-z]+)\b|^[A-Z]\w+ (?:owns|is)\b",
        ),
        (
            "when|what time|which day|what day",
            rf"(?i:{DAY}|{TIME})|\d(?:st|nd|rd|th|\d\d\d)\b|{LASTS}",
        ),
    )
)
# What a question does with the thing that it is about; an answer says it in other words.
ASIDE = frozenset(
    "happens happen mean bring use keep leave stay pay send see try start lend borrow".split()
)
OF_KINDS = frozenset("fast soon quickly often age nam".split())
OF_ALL = ALL_OF_IT | frozenset(
    "what what's which is are do can could have got get you i we there on the my me read tell your "
    "please available for to".split()
)
# Who orders wants the thing, and is not to be read its price; "have a nice day" asks nothing.
ORDERS = re.compile(
    r"(?:can|could|may|might) (?:i|we) (?:(?:please|also|just) )*(?:have|get|order) "
    r"(?:an?|the|one|two|three|four|another|some)\b|have an?\b"
)
FOLLOWS = re.compile(
    r"(?:(?:what|how) about|and(?= the | an? )) (?:the |an? )?(\S+(?: \S+){,3})", re.I
)
STEMS_OF_ALL = frozenset(map(stem, OF_ALL))
STEMS_OF_HAVING = frozenset(map(stem, ("have", "got")))
STEMS_OF_HOURS = frozenset(map(stem, (*DAYS, *OPEN)))
TALK = frozenset(
    "hear help repeat mean understand speak talk person human robot bot machine real name wait "
    "moment sorry anybody somebody doing kidding right wrong question ask order book appointment "
    "call table reservation".split()
)


@dataclass(frozen=True, slots=True)
class Fact:
    """A sentence that may be said, or one entry of a list of prices. is_list: of several prices."""

    text: str
    stems: frozenset[str]
    is_list: bool = False
    is_price: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """The facts of one text. known: stems of all its words; own: of what the agent is of.

    days: today and tomorrow, where it says which they are; has_times: besides its hours.
    """

    name: str
    facts: tuple[Fact, ...]
    hours: tuple[str, ...]
    known: frozenset[str]
    own: frozenset[str]
    days: dict[str, str]
    has_times: bool

    def weight(self, stem: str) -> float:
        """How much a word of a question tells: the fewer sentences have it, the more."""
        n_with = sum(stem in fact.stems for fact in self.facts if not fact.is_price)
        return log(2.0 + len(self.facts)) - log(1.0 + n_with)

    def share(self, wanted: Iterable[str], fact: Fact) -> float:
        """How much of what the question turns on stands in this sentence."""
        weights = {stem: self.weight(stem) for stem in wanted}
        whole = sum(weights.values())
        return (
            sum(one for stem, one in weights.items() if stem in fact.stems) / whole if whole else 0
        )


@lru_cache(maxsize=64)
def told_by(instructions: str) -> Told:
    """Return what these instructions say."""
    facts: list[Fact] = []
    lines = (
        TITLE.sub(r"\1 ", " ".join(line.split()))
        for line in LINE.split(LISTED.sub(r"\g<0>\n", instructions))
    )
    sentences = [one for line in lines for one in SENTENCE_END.split(line) if one]
    for sentence in sentences:
        if IDENTITY.match(sentence) or ORDER.match(sentence) and not OF_PLACE.search(sentence):
            continue
        n_prices = len(PRICE.findall(sentence))
        facts.append(Fact(sentence, stems_of(sentence), is_list=n_prices > 1))
        entries = _entries(sentence)
        is_list = n_prices == len(entries) and (n_prices == 2 or ": " in sentence)
        if n_prices > 2 or is_list and all(map(_is_short, entries)):
            facts += entries
    days = {}
    if today := IS_TODAY.search(instructions):
        at = DAYS.index(today[1].lower())
        days = {"today": DAYS[at], "tomorrow": DAYS[(at + 1) % len(DAYS)]}
    hours = tuple(fact.text for fact in facts if not fact.is_list and tells_hours(fact.text))
    name = NAME.search(instructions)
    first, known = stems_of(sentences[0] if sentences else ""), stems_of(instructions)
    return Told(
        name[1] if name else "", tuple(facts), hours, known,
        first, days, any(re.search(TIME, one.text, re.I) for one in facts if one.text not in hours),
    )  # fmt: skip


def _entries(sentence: str) -> list[Fact]:
    """Each thing of a list with its price, as a sentence."""
    found = []
    _, colon, rest = sentence.partition(": ")
    for piece in NEXT_ENTRY.split(rest if colon and not PRICE.match(rest) else sentence):
        if (price := PRICE.search(piece)) is None:
            continue
        thing = re.sub(r"\b(?:is|are|costs?|at|for)\s*$", "", piece[: price.start()]).strip(" ,-:(")
        thing, behind = LIST_HEAD.sub("", thing), piece[price.end() :].strip(" .)")
        if thing:
            text = f"{thing[0].upper()}{thing[1:]}: {price[0]}{behind and ' '}{behind}."
            found.append(Fact(text, stems_of(thing), is_price=True))
    return found


def _is_short(entry: Fact) -> bool:
    """Whether it is a thing, and no clause that holds a price."""
    return len(entry.text.partition(": ")[0].split()) <= 3


def quoted(
    question: str,
    instructions: str,
    other: str = "",
    *,
    knows_all: bool = True,
    knows_prices: bool = True,
    prices: str = "",
) -> str | None:
    """Return what is said to a question whose answer stands in the instructions; None where that is
    the model's. other: what else the model knows, as what its tools are for, and may be asked for.
    knows_all: the agent has no documents that may know more; knows_prices: nor a tool. prices: as
    `other`, of tools that are asked for prices alone.
    """
    if not (words := question_words(question)) or SUMS.search(question.lower()):
        return None
    told = told_by(instructions)
    knows_all = knows_all and len(told.facts) >= LEAST_FACTS
    if "name" in words and "your" in words and told.name:
        return f"I'm {told.name}."
    wanted = frozenset(map(stem, (word for word in words if word not in EMPTY)))
    words = [told.days.get(word, word) for word in words]
    for found in (
        opening_hours(words, told.hours), _of_price(words, told), _of_place(words, wanted, told),
        _of_payment(words, told),
    ):  # fmt: skip
        if found is not None:
            return found
    of_tools = stems_of(other)
    known = told.known | of_tools | stems_of(prices)
    known |= STEMS_OF_HOURS if told.hours or of_tools & STEMS_OF_HOURS else set()
    if asks_payment(words):  # and no sentence tells it: another one of paying is another subject
        return DONT_KNOW if knows_all and is_unknown(words, wanted, known) else None
    if asks_price(words) and (priced := wanted - STEMS_OF_COST):
        # Who has no price written down is to be told no other sentence, and no price of another.
        with_price = [fact.stems for fact in told.facts if fact.is_price or COSTS.search(fact.text)]
        priced_known = stems_of(prices).union(of_tools, *with_price)
        is_nowhere = is_unknown(words, priced - STEMS_OF_OFFERS, priced_known)
        return DONT_KNOW if knows_all and knows_prices and is_nowhere else None
    if (best := _of_subject(words, wanted, told)) is not None:
        is_of_tools = 0 < len(wanted & of_tools) >= len(wanted & best.stems)
        return None if is_of_tools else best.text
    is_of_today = told.has_times and OF_TODAY.search(question.lower()) is not None
    if is_of_today or not (knows_all and is_unknown(words, wanted, known)):
        return None
    if any(one.is_list or HEADS_LIST.match(one.text) for one in told.facts):
        is_sold = not wanted & STEMS_OF_HOUSE
        if is_sold and IS_OFFERED.search(" ".join(words)):  # "what cakes do you have": the model's
            return DONT_HAVE if words[0] in DOUBTS else None
    return DONT_KNOW


def whole_question(turn: str, before: str) -> str:
    """Return "and the other?" as the price question that it is behind one; any other turn as it is.

    before: what the caller said last.
    """
    asked = FOLLOWS.fullmatch(turn.strip(" ?.")) if asks_price(question_words(before)) else None
    return f"how much is the {asked[1]}" if asked is not None else turn


def question_words(question: str) -> list[str]:
    """Return its words without what leads in to it; none where it is no question, an order, or
    long.
    """
    said = [word for word in words_of(WONDERS.sub(_asked, question.lower())) if word not in FILLERS]
    words = [word for word, before in zip(said, ["", *said], strict=False) if word != before]
    led = set()
    while words and words[0] in LEADS:
        led.add(words.pop(0))
    if ORDERS.match(" ".join(words)):
        return []
    is_marked = "and" not in led and question.rstrip().endswith("?")  # else of what was said last
    is_question = bool(words) and (words[0] in ASKS or is_marked or "how much" in " ".join(words))
    return words if is_question and len(words) <= MAX_QUESTION_WORDS else []


def _asked(wonders: re.Match[str]) -> str:
    return "is " if wonders[1] else "what is "


def _of_subject(words: list[str], wanted: frozenset[str], told: Told) -> Fact | None:
    """The sentence that has what the question turns on, and what its kind of answer has."""
    text = " ".join(words)
    if is_of_all(words, wanted & told.known):
        return _list_of(told, with_prices="prices" in words)
    kind = kind_of(words)
    wanted = wanted - OF_KINDS if kind else wanted
    if "how long" in text:
        wanted = wanted - STEMS_ASIDE or wanted
    offers = SELLS.search(text) is not None
    verbs = {stem(word) for word in words if word in OFFERS}
    fitting = [
        fact
        for fact in told.facts
        if (kind is None or kind.search(fact.text))
        and (not offers or fact.is_price or verbs & fact.stems or verbs <= STEMS_OF_HAVING)
        and not ("did" in words and fact.text in told.hours)
    ]
    if kind is not None and not wanted and len(fitting) == 1:
        return fitting[0]
    is_doubt = words[0] in DOUBTS
    for fact in sorted(
        fitting, key=lambda one: (-told.share(wanted, one), one.is_list, one.is_price)
    ):
        share = told.share(wanted - {stem(word) for word in OFFERS}, fact)
        is_whole = share > 0.99 and (len(wanted) > 1 or is_doubt)
        if share < LEAST_SHARE:
            return None
        if is_whole or not (fact.is_list or fact.is_price):
            return replace(fact, text=f"Yes. {fact.text}") if fact.is_price else fact
    return None


def is_of_all(words: list[str], named: frozenset[str]) -> bool:
    """Whether it asks for all that there is: "what do you have", "can you list the menu".

    named: what it names that the agent was told of.
    """
    if {"menu", "options"} & set(words):
        return words[0] != "is" and named <= STEMS_OF_ALL
    anchors = set(words) & (ALL_OF_IT | {"have", "got", "get"})
    return words[0] in ("what", "which", "what's") and bool(anchors) and set(words) <= OF_ALL


def _list_of(told: Told, with_prices: bool) -> Fact | None:
    """Return the things of the lists of prices by name, else the sentence that lists them."""
    whole = next((one for one in told.facts if one.is_list or HEADS_LIST.match(one.text)), None)
    things = [one.text.partition(": ")[0] for one in told.facts if one.is_price]
    if with_prices or len(things) < 2:
        return whole
    named = [one[0].lower() + one[1:] if one[1:2].islower() else one for one in things[:MAX_LISTED]]
    last = "more" if len(things) > MAX_LISTED else named.pop()
    return Fact(f"We have {', '.join(named)} and {last}.", frozenset())


def kind_of(words: list[str]) -> re.Pattern[str] | None:
    """Return what an answer to this question has in it."""
    text = " ".join(words)
    return next((answer for asked, answer in KINDS if asked.search(text)), None)


def is_unknown(words: list[str], wanted: frozenset[str], known: frozenset[str]) -> bool:
    """Whether nothing that the question turns on is anywhere in what the agent was told."""
    verbs = {stem(word) for word in OFFERS & set(words)}
    things = wanted - verbs - OF_KINDS
    if words[0] in REQUESTS and words[1:2] not in (["you"], ["i"], ["we"]):
        return False
    if words[0] not in ASKS or OF_CALL.search(" ".join(words)):
        return False
    if things <= STEMS_OF_COST or things & stems_of(" ".join(TALK)):
        return False
    # Of what is offered only the things count, unless nobody said that any is sold.
    return not things & known or bool(
        verbs - STEMS_OF_HAVING and not verbs & known and wanted & verbs
    )


def asks_price(words: list[str]) -> bool:
    text = " ".join(words)
    costs = set(words) & COST - ({"pay"} if words[:1] != ["what"] else set())  # "can I pay by card"
    return bool(costs) or ("how much" in text and "how much time" not in text)


def _of_price(words: list[str], told: Told) -> str | None:
    """Return what something costs."""
    if not asks_price(words):
        return None
    wanted = frozenset(stem(word) for word in words if word not in EMPTY | COST | {"extra"})
    priced = [fact for fact in told.facts if fact.is_price or COSTS.search(fact.text)]
    entries = [fact for fact in priced if fact.is_price]
    for facts in (entries, [fact for fact in priced if not fact.is_price]):
        best = max(facts, key=lambda fact: _fit(wanted, fact), default=None)
        if best is not None and wanted and len(wanted & best.stems) >= LEAST_SHARE * len(wanted):
            return best.text
    return None


def _fit(wanted: frozenset[str], fact: Fact) -> tuple[int, int]:
    """More of the question's words, then fewer of its own."""
    return len(wanted & fact.stems), -len(fact.stems)


def _of_place(words: list[str], wanted: frozenset[str], told: Told) -> str | None:
    """Return where it is."""
    text = " ".join(words)
    is_asked = bool(set(words) & PLACE) or "find you" in text or "get to you" in text
    left = wanted - {stem(word) for word in (*PLACE, "find")} - told.own
    places = [fact for fact in told.facts if OF_PLACE.search(fact.text) and left <= fact.stems]
    if not is_asked or not places:
        return None
    ours = ("find us", "find you", "we are", "we're", "is at", "is on", "is above", "is in")
    first = next((one for one in places if any(mark in one.text.lower() for mark in ours)), None)
    return (first or places[0]).text.replace("You find you", "You find us")


def asks_payment(words: list[str]) -> bool:
    return bool({"pay", "accept", "take"} & set(words)) and bool(PAYS_BY.search(" ".join(words)))


def _of_payment(words: list[str], told: Told) -> str | None:
    """How it may be paid."""
    if not asks_payment(words):
        return None
    texts = (fact.text for fact in told.facts)
    return next((one for one in texts if IS_PAID.search(one) and PAYS_BY.search(one)), None)


def line_of(result: str, asked: str = "", *, is_authors: bool = False) -> str | None:
    """A tool's result as it is said, where it is a text or a few of them by name; None: it is the
    model's to tell. asked: what the tool was asked for, which says of one value what it is of.
    is_authors: the file's author has written it, an error too.
    """
    try:
        found = json.loads(result)
    except ValueError:
        return None
    if not isinstance(found, dict) or not 1 <= len(found) <= MAX_TOLD:
        return None
    if "error" in found and not (is_authors and asked and len(found) == 1):
        return None
    if not all(isinstance(value, str | int | float) and str(value) for value in found.values()):
        return None
    if len(found) == 1 and asked and not any(map(str.isdigit, asked)):
        found = {asked: next(iter(found.values()))}
    told = (f"{name.replace('_', ' ').capitalize()}: {value}." for name, value in found.items())
    return " ".join(told)


STEMS_ASIDE, STEMS_OF_COST = frozenset(map(stem, ASIDE)), frozenset(map(stem, COST))
STEMS_OF_OFFERS = frozenset(map(stem, OFFERS))
# Not of what is sold, whose list tells of what else there is.
STEMS_OF_HOUSE = stems_of("access wheelchair ramp lift elevator toilet restroom bathroom wifi")
