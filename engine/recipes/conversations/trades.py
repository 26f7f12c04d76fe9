"""Calls to agents of many trades, for training: each agent file is another, and has to be read.

Owns the reading of `trades.toml`, a business drawn from it, and the moves that only such calls
have: a rule of the house, one that the prompt leaves out, a booking by a tool of three to six
arguments, a caller who corrects himself, and small talk that leads back.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from .business import Business, random_hours, random_price, write_prompt
from .call import Call
from .calls import Move, greeting, holds_held_out, run_moves
from .lexicon import FIRST_NAMES, place_name
from .open_words import draw
from .place_topics import DENIALS, TOPICS
from .recognizer_noise import RecognizerNoise
from .skills import counter, info, talk
from .skills.booking import spoken_day
from .wording import DAYS, article, clock, expand

_FILE = Path(__file__).with_name("trades.toml")
# Topics of `place_topics` that make sense at any counter; the others are about food.
_TOPICS = tuple(
    topic
    for topic in TOPICS
    if topic[0]
    in """wifi parking dogs payment manager owner founded cancel floor nearby discount restroom
    wheelchair phone website gift wait walkin languages bus street""".split()
)
_DENIALS = tuple(
    denial for denial in DENIALS if denial[0] in "parking wifi payment discount gift".split()
)
_ANYTHING = "Anything else|Can I help with anything else|What else can I do for you"
_NUMBERS = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
} | {"nineteen": 19, "thirty": 30}
_TOOL_NAMES = ("book_{n}", "make_{n}", "create_{n}", "add_{n}", "schedule_{n}", "request_{n}")


@dataclass(frozen=True, slots=True)
class Field:
    """One argument of a booking: the agent's question, how it is said, what it may be."""

    question: str
    form: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trade:
    """A kind of business. rules: questions, sentence of the prompt, reply, values."""

    kinds: tuple[str, ...]
    things: tuple[str, ...]
    goods: tuple[str, ...]
    prices: tuple[int, int]
    rules: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    noun: str
    asks: tuple[str, ...]


@lru_cache
def read_trades() -> tuple[tuple[Trade, ...], dict[str, Field]]:
    """The trades, and the fields that their tools ask for."""
    given = tomllib.loads(_FILE.read_text())
    fields = {
        name: Field(question, form, tuple(filter(None, values.split(";"))))
        for name, (question, form, values) in given["fields"].items()
    }
    trades = []
    for trade in given["trades"]:
        noun, asks = trade["book"].split(":")
        trades.append(
            Trade(
                tuple(trade["kind"].split("|")),
                tuple(trade["things"].split(";")),
                tuple(trade["goods"].split(";")),
                (trade["prices"][0], trade["prices"][1]),
                tuple((q, s, r, tuple(v.split(";"))) for q, s, r, v in trade["rules"]),
                noun,
                tuple(asks.split(",")),
            )
        )
    return tuple(trades), fields


def trade_call(rng: random.Random, noise: RecognizerNoise, questions: Sequence[str]) -> Call:
    """One call to a business of some trade; `questions` have nothing to do with any."""
    while True:
        trade = rng.choice(read_trades()[0])
        place, silent = _business(rng, trade)
        call = Call(rng, noise, place, rng.choice(("written", "recognized", "noisy")))
        has_tool = rng.random() < 0.5
        booking = _Booking(call, trade) if has_tool else None
        line = booking.instruction if booking else ""
        call.begin(f"{place.prompt} {line}".strip())
        if rng.random() < 0.8:
            greeting(call, place)
        moves: list[tuple[Move, float]] = [
            (counter.topic, 32),
            (partial(_unknown_rule, silent), 14),
            (counter.nobody_knows, 5),
            (info.price, 9),
            (info.price_of_it, 3),
            (info.is_there, 5),
            (counter.absent, 6),
            (counter.closed_day, 10),
            (info.hours_of_day, 8),
            (counter.closed_days, 2),
            (counter.weekend, 3),
            (info.menu, 2),
            (info.identity, 4),
            (_corrected_price, 3),
            (talk.thanks, 1),
            (lambda c: talk.refuse(c, questions), 5),
        ]
        if booking:
            moves.append((booking.act, 14))
        run_moves(call, moves, rng.choice((2, 4, 6, 8, 10)))
        if rng.random() < 0.3:
            talk.goodbye(call)
        if not holds_held_out(call):
            return call


def _business(rng: random.Random, trade: Trade) -> tuple[Business, list[str]]:
    """A place of a trade, and the questions about rules that its prompt leaves out."""
    kind_word, name = rng.choice(trade.kinds), place_name(rng, False)
    hours, hours_text = random_hours(rng)
    categories = {
        "services": rng.sample(trade.things, rng.randint(2, len(trade.things))),
        "goods": rng.sample(trade.goods, rng.randint(0, min(4, len(trade.goods)))),
    }
    categories = {group: names for group, names in categories.items() if names}
    low, high = trade.prices
    style = rng.choice(("$", "$", "dollars", "round"))
    middle = max(low + 1, (low + high) // 2)
    items = {
        item: _price(rng, (middle, high) if group == "services" else (low, middle), style)
        for group, names in categories.items()
        for item in names
    }
    facts: dict[str, tuple[str, str, str, str]] = {}
    rules = list(trade.rules)
    rng.shuffle(rules)
    n_told = rng.randint(1, max(1, len(rules) - 1))
    for index, (questions, sentence, reply, values) in enumerate(rules[:n_told]):
        value = rng.choice(values)
        facts[f"rule {index}"] = (questions, expand(rng, sentence, v=value), reply, value)
    for topic, questions, sentence, reply, values in rng.sample(_TOPICS, rng.choice((0, 1, 2, 3))):
        value = rng.choice(values) if rng.random() < 0.5 else draw(rng, values, False)
        facts[topic] = (questions, expand(rng, sentence, v=value), reply, value)
    if rng.random() < 0.25:
        topic, sentence, reply, word = rng.choice(_DENIALS)
        questions = next(one[1] for one in TOPICS if one[0] == topic)
        facts[topic] = (questions, expand(rng, sentence), reply, word)
    facts = dict(rng.sample(list(facts.items()), len(facts)))
    place = Business(
        "salon",
        kind_word,
        f"{name} {kind_word.title()}" if rng.random() < 0.6 else name,
        draw(rng, FIRST_NAMES, False),
        rng.choice((f"{trade.noun}s and questions about the {kind_word}", "prices and hours")),
        hours,
        hours_text,
        items,
        categories,
        facts,
        [],
        rng.choice(DAYS) if rng.random() < 0.25 else None,
    )
    while "silent" in place.facts or not place.prompt:
        place.facts.pop("silent", None)
        place.prompt = write_prompt(rng, place)
    # Callers also ask what only another trade would say; the prompt is as silent about that. What
    # shares a word with something told might be answered by it, so it is not asked.
    told = _content(" ".join(fact[0] for fact in place.facts.values()))
    others = [rule[0] for other in rng.sample(read_trades()[0], 3) for rule in other.rules]
    others = [question for question in others if not _content(question) & told]
    return place, [
        *(rule[0] for rule in rules[n_told:]),
        *rng.sample(others, min(3, len(others))),
    ]


def _content(template: str) -> set[str]:
    """The longer words of a template's questions, which tell two subjects apart."""
    return set(re.findall(r"[a-z]{5,}", template)) - {"there", "would", "should", "could", "which"}


def _price(rng: random.Random, span: tuple[int, int], style: str) -> str:
    """A price in a span of dollars; cents where it is small."""
    if span[1] <= 30 or style == "dollars":
        return random_price(rng, "cafe" if span[1] <= 12 else "restaurant", style)
    return f"${rng.randint(*span)}"


def _unknown_rule(silent: Sequence[str], call: Call) -> None:
    """A question of the trade that its prompt does not answer: said so, with what is known."""
    rng, place = call.rng, call.place
    assert place is not None
    call.user(rng.choice(silent))
    known = rng.choice(list(place.items))
    offer = rng.choice((place.scope, f"the price of the {known}", "our opening hours"))
    call.agent(
        "(Sorry, |I'm sorry, |I'm afraid |)I don't know that, but I can (help with|tell you about) "
        "{k}.|(Sorry|I'm sorry), I don't have that information. {a}?",
        k=offer,
        a=expand(rng, _ANYTHING),
    )


def _corrected_price(call: Call) -> None:
    """The caller means another thing than the one he named."""
    place, rng = call.place, call.rng
    assert place is not None
    if len(place.items) < 2:
        return info.price(call)
    first, second = rng.sample(list(place.items), 2)
    call.user(
        "how much is {f}, no,( sorry,|) {s}|what does {f} cost, i mean {s}|the price of {f}, no "
        "wait, {s}",
        f=article(first),
        s=article(second),
    )
    call.agent(
        "(the|our) {i} (is|costs) {p}.|that's {p} for the {i}.",
        place.items[second],
        second,
        kind="fact",
        i=second,
        p=place.items[second],
    )
    return None


class _Booking:
    """The booking tool of one call: its schema, and the exchange that fills it."""

    def __init__(self, call: Call, trade: Trade) -> None:
        self._call, self._noun = call, trade.noun
        rng, fields = call.rng, read_trades()[1]
        n_own = rng.randint(1, min(3, len(trade.asks)))
        own = sorted(rng.sample(trade.asks, n_own), key=trade.asks.index)
        self._fields = {name: fields[name] for name in own}
        common = ["day", "time", "name"] if rng.random() < 0.7 else ["day", "name"]
        self._names = [*own, *common] if rng.random() < 0.5 else [*common, *own]
        noun = trade.noun.replace(" ", "_")
        self._tool = rng.choice(_TOOL_NAMES).format(n=noun)
        properties: dict[str, Any] = {
            name: {"type": "integer" if self._is_number(name) else "string"} for name in self._names
        }
        call.tools = [
            {
                "type": "function",
                "function": {
                    "name": self._tool,
                    "description": expand(
                        rng, "(book|arrange|note|add) {a} for a caller.", a=article(trade.noun)
                    ),
                    "parameters": {
                        "type": "object",
                        "properties": properties,
                        "required": list(properties),
                    },
                },
            }
        ]
        self.instruction = expand(
            rng,
            "you can book {n}s( with the tool|).|book {n}s once you know all details.|take the "
            "details and book with the tool.|",
            n=trade.noun,
        )

    def _is_number(self, name: str) -> bool:
        field = self._fields.get(name)
        return field is not None and bool(field.values) and all(v in _NUMBERS for v in field.values)

    def _value(self, name: str) -> str:
        """Return what the caller says of an argument."""
        rng, place = self._call.rng, self._call.place
        assert place is not None
        if name == "day":
            return spoken_day(self._call)
        if name == "time":
            return clock(rng.randint(8, 19), rng.choice((0, 0, 30, 15)), "am")
        if name == "name":
            return draw(rng, FIRST_NAMES, False)
        values = self._fields[name].values or tuple(place.items)
        return rng.choice(values)

    def _said(self, name: str, value: str) -> str:
        if name == "day":
            return f"on {value}" if value.split()[0].endswith("day") else value
        forms = {"time": "at {v}", "name": "(under|my name is|it's|) {v}"}
        form = forms.get(name) or self._fields[name].form
        text = expand(self._call.rng, form, v=value)
        return (
            text if value[:1].isupper() and text.startswith(value) else text[:1].lower() + text[1:]
        )

    def _question(self, name: str) -> str:
        asks = {
            "day": "(which|what) day( works for you| would you like|)|when would you like to come",
            "time": "(at |)what time|which time( suits you|)",
            "name": "(under |)what name|(may|can) i have your name",
        }
        return expand(self._call.rng, asks.get(name) or self._fields[name].question)

    def _argument(self, name: str, value: str) -> Any:
        if self._is_number(name):
            return _NUMBERS[value]
        if name == "day":
            return value.lower()
        if name in ("phone", "plate", "customer_number", "card_number"):
            return value.replace(" ", "")
        # An argument is copied as the last turn has it: a recognizer writes names in lower case.
        said = str(self._call.messages[-1]["content"])
        return value if value in said else value.lower()

    def act(self, call: Call) -> None:
        """The caller asks for a booking; what he leaves out is asked; the tool is called."""
        rng, noun = call.rng, self._noun
        values = {name: self._value(name) for name in self._names}
        given = rng.sample(self._names, rng.choice((0, 1, 1, 2, 2, 3)))
        call.user(
            "{r} {v}",
            r=expand(
                rng,
                "(i'd like to|can i|i want to|i need to) (book|make|arrange) {a}|i need {a}|(can "
                "you|could you) (book|arrange) {a}( for me|)|{a} please",
                a=article(noun),
            ),
            v=" ".join(self._said(name, values[name]) for name in given),
        )
        arguments = {name: self._argument(name, values[name]) for name in given}
        for name in self._names:
            if name in arguments:
                continue
            lead = rng.choice(("", "", "Sure. ", "Of course. ", "Okay. ", "Thanks. "))
            call.agent("{l}{q}?", l=lead, q=self._question(name))
            value = values[name]
            if rng.random() < 0.08:
                other = self._value(name)
                call.user("{o}, no,( sorry,|) {v}", o=other, v=self._said(name, value))
            else:
                call.user("{s}( please|)", s=self._said(name, value))
            arguments[name] = self._argument(name, value)
        ordered = {name: arguments[name] for name in self._names}
        self._confirm(ordered, values)

    def _confirm(self, arguments: dict[str, Any], values: dict[str, str]) -> None:
        call, rng = self._call, self._call.rng
        code = "".join(rng.choice("ABCDEFGHKLMNPRSTVXZ23456789") for _ in range(rng.randint(3, 4)))
        filler = rng.choice(("", "", "One moment.", "Let me book that."))
        if rng.random() < 0.15:
            error = rng.choice(("not free", "fully booked", "no time left", "closed"))
            call.call_tool(self._tool, arguments, {"error": error}, filler)
            call.agent(
                "(sorry|i'm sorry), that's {e}. (would|does) another (day|time) work?",
                error,
                kind="tool_result",
                e=error,
            )
            return
        result = rng.choice(
            ({"code": code}, {"status": "booked", "code": code}, {"confirmation": code})
        )
        call.call_tool(self._tool, arguments, result, filler)
        day = self._said("day", values["day"])
        at = f" at {values['time']}" if "time" in values else ""
        call.agent(
            "(you're booked|it's booked|done, that's booked) {d}{t}. (the|your) code is {c}.",
            " ".join(code),
            kind="tool_result",
            d=day,
            t=at,
            c=" ".join(code),
        )
