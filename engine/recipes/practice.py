"""Calls for training alone that are dense in what a small model reads wrongly most often.

Question upon question about a prompt whose prices are alike; tool call upon tool call; lists with
counts and spaced figures that become one argument after another.
"""

from __future__ import annotations

import random
from typing import Any

from . import skills_booking, skills_info, skills_order
from .business import Business, random_business, random_hours, write_prompt
from .call import Call
from .calls import Move, holds_demo, run_moves
from .drills import Drilled
from .lexicon import DRINKS, MEALS, PASTRIES
from .open_words import draw
from .recognizer_noise import RecognizerNoise
from .skills_tools import ToolDesk
from .tool_schemas import random_tool
from .wording import counted, digit_words, expand, join

# Kinds of tools by how often their arguments are wrong.
_DESK_KINDS = {"total": 8, "status": 4, "cancel": 2, "available": 5, "book": 4, "hours": 1}


def facts_call(rng: random.Random, noise: RecognizerNoise) -> Call:
    """Questions about one prompt until the call is full."""
    while True:
        call = _begin(rng, noise, _hard_place(rng))
        assert call.place is not None
        call.messages.append({"role": "system", "content": call.place.prompt})
        moves: list[tuple[Move, float]] = [
            (skills_info.hours_of_day, 12),
            (skills_info.price, 6),
            (skills_info.price_of_it, 5),
            (skills_info.is_there, 4),
            (skills_info.menu, 9),
            (skills_info.fact, 4 if call.place.facts else 0),
            (skills_info.identity, 2),
            (skills_info.ticket, 8 if call.place.films else 0),
            (skills_booking.booking, 4),
            (skills_order.digits, 6),
        ]
        run_moves(call, moves, 12)
        if not holds_demo(call):
            return call


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
        call.messages.append({"role": "system", "content": f"You are {place.agent}.{menu}"})
        for _ in range(rng.choice((3, 4, 5, 6))):
            desk.act()
        if not holds_demo(call):
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
