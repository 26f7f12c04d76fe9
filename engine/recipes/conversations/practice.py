"""Calls for training alone that are dense in what a small model reads wrongly most often.

Question upon question about a prompt whose prices are alike; what is not there, closed days and
what nobody knows; tool call upon tool call, at places of all kinds; lists with counts and spaced
figures that become one argument after another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

from .business import Business, random_business, random_hours, random_price, write_prompt
from .call import Call
from .calls import Move, greeting, holds_held_out, run_moves
from .drills import Drilled
from .lexicon import DRINKS, MEALS, PASTRIES, entries
from .open_words import draw
from .place_topics import DENIALS, TOPICS
from .recognizer_noise import RecognizerNoise
from .skills import booking, counter, info, order, talk
from .skills.desk import PracticeDesk
from .skills.tool_schemas import random_tool
from .skills.tools import ToolDesk, tool_instruction
from .wording import counted, digit_words, expand, join

_BOOKING_KINDS = ("times", "appoint", "book", "available", "status", "cancel", "transfer")
# Words for the kinds of places whose services are called "salon".
_OFFICES = entries("offices")
# Kinds of tools by how often their arguments are wrong.
_DESK_KINDS = {"total": 8, "status": 4, "cancel": 2, "available": 5, "book": 4, "hours": 1}


def facts_call(rng: random.Random, noise: RecognizerNoise) -> Call:
    """Questions about one prompt until the call is full."""
    while True:
        call = _begin(rng, noise, _hard_place(rng))
        assert call.place is not None
        call.begin(call.place.prompt)
        moves: list[tuple[Move, float]] = [
            (info.hours_of_day, 12),
            (info.price, 6),
            (info.price_of_it, 5),
            (info.is_there, 4),
            (info.menu, 9),
            (info.fact, 4 if call.place.facts else 0),
            (info.identity, 2),
            (info.ticket, 8 if call.place.films else 0),
            (booking.booking, 4),
            (order.digits, 6),
        ]
        run_moves(call, moves, 12)
        if not holds_held_out(call):
            return call


def counter_call(rng: random.Random, noise: RecognizerNoise, questions: Sequence[str]) -> Call:
    """Plain questions about one place: what it has and has not, its days, what nobody knows."""
    while True:
        call = _begin(rng, noise, _plain_place(rng))
        assert call.place is not None
        call.begin(call.place.prompt)
        if rng.random() < 0.8:
            greeting(call, call.place)
        moves: list[tuple[Move, float]] = [
            *counter.MOVES,
            (info.price, 8),
            (info.menu, 3),
            (info.identity, 3),
            (order.order, 4 if call.place.sells_food else 0),
            (order.unavailable, 2 if call.place.sells_food else 0),
            (lambda c: talk.refuse(c, questions), 18),
        ]
        # A first question follows the greeting as often as a later one follows others.
        run_moves(call, moves, rng.choice((1, 2, 4, 8, 12)))
        if not holds_held_out(call):
            return call


def front_desk_call(rng: random.Random, noise: RecognizerNoise, questions: Sequence[str]) -> Call:
    """Any kind of place with a whole prompt and tools: which of the two a question is for."""
    while True:
        place = _plain_place(rng)
        has_price_list = rng.random() < 0.6
        call = _begin(rng, noise, place)
        if has_price_list:
            kinds = rng.sample(_BOOKING_KINDS, rng.choice((1, 2, 2, 3)))
            prompt = place.prompt
        else:
            kinds = [
                "quote",
                *rng.sample(("hours", "times", "status", "cancel"), rng.choice((1, 2))),
            ]
            prompt = _prompt_without_prices(rng, place, "hours" in kinds)
        if "book" in kinds and not place.sells_food:
            continue
        desk = PracticeDesk(call, kinds)
        line = tool_instruction(rng)
        call.begin(f"{prompt} {line}".strip())
        if rng.random() < 0.8:
            greeting(call, place)
        moves: list[tuple[Move, float]] = [
            (partial(_act, desk), 14),
            (counter.absent, 2 if has_price_list else 0),
            (info.price, 8 if has_price_list else 0),
            (counter.closed_day, 0 if "hours" in kinds else 8),
            (counter.closed_days, 0 if "hours" in kinds else 1),
            (info.menu, 3),
            (counter.of_a_kind, 2),
            (counter.topic, 4),
            (counter.nobody_knows, 4),
            (info.identity, 2),
            (talk.thanks, 1),
            (lambda c: talk.refuse(c, questions), 9),
        ]
        run_moves(call, moves, rng.choice((1, 2, 4, 6, 8)))
        if rng.random() < 0.3:
            talk.goodbye(call)
        if not holds_held_out(call):
            return call


def _act(desk: ToolDesk, _: Call) -> None:
    desk.act()


def desk_call(rng: random.Random, noise: RecognizerNoise) -> Call:
    """Tool calls under a short prompt, most of them with lists, codes or several arguments."""
    while True:
        place = random_business(rng)
        if not place.sells_food:
            continue
        call = _begin(rng, noise, place)
        kinds = rng.choices(list(_DESK_KINDS), list(_DESK_KINDS.values()), k=rng.choice((1, 2, 3)))
        desk = ToolDesk(call, list(dict.fromkeys(kinds)))
        menu = f" Menu: {join(list(place.items))}." if rng.random() < 0.5 else ""
        call.begin(f"You are {place.agent}.{menu}")
        for _ in range(rng.choice((3, 4, 5, 6))):
            desk.act()
        if not holds_held_out(call):
            return call


def tally(rng: random.Random, noise: RecognizerNoise) -> Drilled:
    """Counted lists, or figures said one by one, that become a tool's only argument."""
    kind = rng.choice(("total", "total", "status", "cancel"))
    tool = random_tool(rng, kind)
    (argument,) = tool.names.values()
    stock = list(dict.fromkeys(draw(rng, DRINKS + PASTRIES + MEALS, False) for _ in range(6)))
    messages: list[dict[str, Any]] = []
    for _ in range(rng.choice((4, 5, 6))):
        value: str | list[str]
        if kind == "total":
            names = rng.sample(stock, min(len(stock), rng.choice((1, 2, 2, 3, 3))))
            counts = [rng.choice((1, 1, 2, 3)) for _ in names]
            pairs = list(zip(counts, names, strict=True))
            said = join([counted(count, name, "a") for count, name in pairs])
            value = [name for count, name in pairs for _ in range(count)]
        else:
            value = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 7)))
            said = " ".join(value) if rng.random() < 0.75 else digit_words(value)
        text = expand(rng, "{s}|and {s}|{s} please|how about {s}|now {s}", s=said)
        if rng.random() < 0.4:
            text = noise.clean(text, rng)
        call = {"name": tool.name, "arguments": {argument: value}}
        messages += [
            {"role": "user", "content": text},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": call}],
            },
        ]
    return messages, [tool.schema]


def _begin(rng: random.Random, noise: RecognizerNoise, place: Business) -> Call:
    return Call(rng, noise, place, rng.choice(("written", "recognized", "noisy")))


def _hard_place(rng: random.Random) -> Business:
    """A place whose prompt is easily misread: prices of the same few figures, a closed day."""
    while True:
        place = random_business(rng)
        needs_closed_day = rng.random() < 0.6
        while needs_closed_day and None not in place.hours.values():
            place.hours, place.hours_text = random_hours(rng)
        if rng.random() < 0.6:
            dollars = [rng.randint(2, 39) for _ in range(2)]
            cents = rng.sample((10, 20, 25, 50, 70, 75, 95), 2)
            form = rng.choice(("${d}.{c:02d}", "${d}.{c:02d}", "{d} dollars {c}"))
            place.items = {
                item: form.format(d=rng.choice((*dollars, rng.randint(2, 39))), c=rng.choice(cents))
                for item in place.items
            }
        place.facts.pop("silent", None)
        place.prompt = write_prompt(rng, place)
        if "silent" not in place.facts:
            return place


def _plain_place(rng: random.Random) -> Business:
    """A place of any kind with more facts, things that are alike, and some that are denied."""
    while True:
        place = random_business(rng)
        if place.kind == "salon" and rng.random() < 0.7:
            place.kind_word = rng.choice(_OFFICES)
            place.scope = f"appointments and questions about the {place.kind_word}"
        elif place.kind in ("ride", "cinema") and rng.random() < 0.6:
            continue  # they sell little that can be asked for
        if rng.random() < 0.6:
            while None not in place.hours.values():
                place.hours, place.hours_text = random_hours(rng)
        _add_look_alikes(rng, place)
        place.facts = {}
        for name, questions, sentence, reply, values in rng.sample(
            TOPICS, rng.choice((0, 1, 2, 2, 3, 4, 5))
        ):
            value = draw(rng, values, False)
            place.facts[name] = (questions, expand(rng, sentence, v=value), reply, value)
        for name, sentence, reply, word in rng.sample(DENIALS, rng.choice((0, 0, 0, 1, 2))):
            questions = next(topic[1] for topic in TOPICS if topic[0] == name)
            place.facts[name] = (questions, expand(rng, sentence), reply, word)
        place.prompt = write_prompt(rng, place)
        has_headings = all(f"{name.capitalize()}:" in place.prompt for name in place.categories)
        if "silent" not in place.facts and (has_headings or rng.random() < 0.4):
            return place


def _add_look_alikes(rng: random.Random, place: Business) -> None:
    """Some things share a word with another at a price of their own: latte, iced latte."""
    for group in place.categories.values():
        if place.kind == "cinema" or rng.random() < 0.6:
            continue
        kept = rng.choice(group)
        front = rng.choice(
            ("iced", "small", "double", "plain", "large", "house", "special", "mini")
        )
        name = f"{front} {kept.split()[-1]}"
        if name in place.items:
            continue
        group.append(name)
        style = "$" if "$" in place.items[kept] else "dollars"
        place.items[name] = random_price(rng, place.kind, style)


def _prompt_without_prices(rng: random.Random, place: Business, has_hours_tool: bool) -> str:
    """Identity, names of what there is, hours unless a tool knows them, facts."""
    listed = join(list(place.items))
    parts = [
        expand(
            rng,
            "you are {a}, the (friendly |)(voice |)assistant of {n}(, a (small |){k}|).|you are "
            "{a}. you answer the phone (for|at) {n}.",
            a=place.agent,
            n=place.name,
            k=place.kind_word,
        ),
        expand(rng, "you help (callers|customers) with {s}.|", s=place.scope),
        expand(rng, "(on the menu|menu|we sell|we offer): {i}.|we (have|offer) {i}.", i=listed),
        "" if has_hours_tool else f"Open {place.hours_text}.",
        *(sentence for _, sentence, _, _ in place.facts.values()),
        expand(rng, "answer in short sentences.|be brief.|"),
    ]
    return " ".join(part for part in parts if part)
