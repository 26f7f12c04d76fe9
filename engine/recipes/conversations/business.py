"""A random place with a name, an agent, hours, a menu and facts, and its system prompt in prose.

The prompt is worded like the `instructions` of an agent file. Every value a caller can ask about
is written in it once, so that a reply has to be read from the prompt and cannot be remembered.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

from .lexicon import (
    DRINKS,
    FILM_TITLES,
    FIRST_NAMES,
    MEALS,
    PASTRIES,
    ROOM_TYPES,
    SERVICES,
    pick,
    place_name,
    split,
)
from .open_words import draw
from .place_topics import PLACE_FACTS, PLACES
from .wording import DAYS, clock, expand, join, plural

# kind, words for it, what it sells, what its agent helps with
KINDS = tuple((one["kind"], split(one["words"]), one["scopes"]) for one in PLACES["kinds"])
# Of a system prompt: ways to word who speaks, what for, how, and when there is somebody.
_PROMPT: dict[str, list[str]] = PLACES["prompt"]
FOOD_KINDS = ("cafe", "bakery", "restaurant")


@dataclass(slots=True)
class Business:
    """One invented place. `hours` holds for each weekday (open, close) or None when closed."""

    kind: str
    kind_word: str
    name: str
    agent: str
    scope: str
    hours: dict[str, tuple[str, str] | None]
    hours_text: str
    items: dict[str, str]
    categories: dict[str, list[str]]
    facts: dict[str, tuple[str, str, str, str]]  # topic -> questions, sentence, reply, value
    unknown: list[tuple[str, str]]  # topics the prompt is silent about: topic, questions
    today: str | None
    films: dict[str, list[str]] = field(default_factory=dict)
    prompt: str = ""

    @property
    def sells_food(self) -> bool:
        return self.kind in FOOD_KINDS


def random_business(rng: random.Random, held_out: bool = False) -> Business:
    """Draw a place; `held_out` draws names and items that training never shows."""
    kind, words, scopes = rng.choices(KINDS, weights=(34, 8, 20, 11, 8, 9, 10))[0]
    kind_word = rng.choice(words)
    proper = place_name(rng, held_out)
    name = proper if rng.random() < 0.15 else f"{proper} {kind_word.title()}"
    if rng.random() < 0.15:
        name = f"the {name}"
    hours, hours_text = random_hours(rng)
    categories = random_menu(rng, kind, held_out)
    style = rng.choice(("$", "$", "$", "dollars", "round"))
    items = {
        item: random_price(rng, kind, style) for group in categories.values() for item in group
    }
    topics = list(PLACE_FACTS)
    rng.shuffle(topics)
    n_known = rng.choice((0, 1, 2, 2, 3, 4))
    facts = {}
    for topic, questions, sentence, reply, values in topics[:n_known]:
        value = draw(rng, values, held_out)
        facts[topic] = (questions, expand(rng, sentence, v=value), reply, value)
    business = Business(
        kind,
        kind_word,
        name,
        draw(rng, FIRST_NAMES, held_out),
        rng.choice(scopes.split("|")),
        hours,
        hours_text,
        items,
        categories,
        facts,
        [(topic, questions) for topic, questions, *_ in topics[n_known:]],
        rng.choice(DAYS) if rng.random() < 0.3 else None,
    )
    if kind == "cinema":
        business.films = random_films(rng, held_out)
    business.prompt = write_prompt(rng, business)
    return business


def random_hours(rng: random.Random) -> tuple[dict[str, tuple[str, str] | None], str]:
    """Draw opening hours: per weekday, and the sentence part that says them."""
    style = rng.choice(("am", "am", "am", "am_tight", "a.m.", "words"))

    def span() -> tuple[str, str]:
        opens, closes = rng.randrange(5, 12), rng.randrange(13, 24)
        minutes = (0, 0, 0, 30, 30, 15, 45)
        return clock(opens, rng.choice(minutes), style), clock(closes, rng.choice(minutes), style)

    layouts = (
        (("every day", 0, 7),),
        (("Monday to Friday", 0, 5), ("Saturday and Sunday", 5, 7)),
        (("on weekdays", 0, 5), ("on weekends", 5, 7)),
        (("Monday to Friday", 0, 5), ("Saturday", 5, 6), ("Sunday", 6, 7)),
        (("Monday through Saturday", 0, 6), ("Sunday", 6, 7)),
        (("Monday to Thursday", 0, 4), ("Friday and Saturday", 4, 6), ("Sunday", 6, 7)),
        (("Monday", 0, 1), ("Tuesday to Sunday", 1, 7)),
        (("Monday and Tuesday", 0, 2), ("Wednesday to Sunday", 2, 7)),
        (("Monday to Wednesday", 0, 3), ("Thursday to Saturday", 3, 6), ("Sunday", 6, 7)),
        tuple((day, index, index + 1) for index, day in enumerate(DAYS)),
    )
    layout = rng.choices(layouts, weights=(2, 4, 4, 4, 3, 3, 2, 1, 2, 1))[0]
    closed_at = None
    if len(layout) > 1 and rng.random() < 0.45:
        closed_at = len(layout) - 1 if rng.random() < 0.7 else 0
        if layout[0][1:] in ((0, 5), (0, 6), (0, 4), (0, 3)):
            closed_at = len(layout) - 1
    hours: dict[str, tuple[str, str] | None] = {}
    parts = []
    link = rng.choice(("from {} to {}", "{} to {}", "{} until {}", "{}-{}", "from {} until {}"))
    for index, (label, first, after) in enumerate(layout):
        opening = None if index == closed_at else span()
        for day in DAYS[first:after]:
            hours[day] = opening
        if opening is None:
            parts.append(
                rng.choice(
                    (
                        f"closed {label}" if label.startswith("on ") else f"closed on {label}",
                        f"{label} closed",
                    )
                )
            )
        else:
            parts.append(f"{label} {link.format(*opening)}")
    return hours, join(parts, rng.choice(("and", "and", ","))).replace(" , ", ", ")


def random_price(rng: random.Random, kind: str, style: str) -> str:
    low, high = {"hotel": (49, 320), "ride": (6, 60), "cinema": (6, 18), "salon": (15, 140)}.get(
        kind, (2, 9) if kind in ("cafe", "bakery") else (5, 29)
    )
    dollars = rng.randrange(low, high)
    cents = rng.choice((0, 25, 50, 75, 95, 50, 20, 80, 40, rng.randrange(5, 100, 5)))
    if high > 60 or style == "round":
        cents = 0
    if style == "dollars":
        return f"{dollars} dollars" + (f" {cents}" if cents else "")
    return f"${dollars}.{cents:02d}" if cents or rng.random() < 0.3 else f"${dollars}"


def random_menu(rng: random.Random, kind: str, held_out: bool) -> dict[str, list[str]]:
    """Draw what is sold, grouped by category."""

    def some(words: tuple[str, ...], low: int, high: int) -> list[str]:
        found: list[str] = []
        for _ in range(rng.randint(low, high)):
            # Only part of an evaluation menu is unseen: unseen dishes are few.
            word = pick(rng, words, rng.random() < 0.5) if held_out else draw(rng, words, False)
            if word not in found:
                found.append(word)
        return found

    match kind:
        case "cafe":
            return {"drinks": some(DRINKS, 2, 6), "pastries": some(PASTRIES, 1, 4)} | (
                {"food": some(MEALS, 1, 3)} if rng.random() < 0.25 else {}
            )
        case "bakery":
            return {"pastries": some(PASTRIES, 3, 7)} | (
                {"drinks": some(DRINKS, 1, 3)} if rng.random() < 0.5 else {}
            )
        case "restaurant":
            return (
                {"mains": some(MEALS, 2, 6)}
                | ({"drinks": some(DRINKS, 1, 3)} if rng.random() < 0.5 else {})
                | ({"desserts": some(PASTRIES, 1, 3)} if rng.random() < 0.5 else {})
            )
        case "hotel":
            return {"rooms": some(ROOM_TYPES, 1, 4)}
        case "salon":
            return {"services": some(SERVICES, 2, 5)}
        case "cinema":
            return {"tickets": ["adult ticket", "child ticket"][: rng.randint(1, 2)]}
        case _:
            return {"rides": rng.sample(("standard car", "van", "luxury car", "airport ride"), 2)}


def random_films(rng: random.Random, held_out: bool) -> dict[str, list[str]]:
    films: dict[str, list[str]] = {}
    for _ in range(rng.randint(1, 4)):
        times = sorted(rng.sample(range(12, 24), rng.randint(1, 3)))
        films[draw(rng, FILM_TITLES, held_out)] = [
            clock(hour, rng.choice((0, 15, 30, 45)), "am") for hour in times
        ]
    return films


def write_prompt(rng: random.Random, place: Business) -> str:
    """Word the system prompt as a developer would write an agent's instructions."""
    identity = expand(
        rng,
        rng.choice(_PROMPT["identity"]),
        agent=place.agent,
        name=place.name,
        kind=place.kind_word,
        size=rng.choice(("small", "busy", "family", "new", "little", "local", "quiet", "popular")),
    )
    facts = [sentence for _, sentence, _, _ in place.facts.values()]
    blocks = [hours_sentence(rng, place), menu_sentence(rng, place), *facts]
    if place.films:
        blocks.append(films_sentence(rng, place))
    if rng.random() < 0.15:
        blocks.pop(rng.randrange(2))  # a prompt may be silent about hours or prices
        place.facts["silent"] = ("", "", "", "")
    if place.today:
        blocks.append(expand(rng, "(today is|it is) {d}.", d=place.today))
    if rng.random() < 0.4:
        rng.shuffle(blocks)
    if rng.random() < 0.5:
        blocks.insert(
            rng.choice((0, len(blocks))),
            expand(
                rng,
                rng.choice(_PROMPT["scope"]).replace("you take {scope}", "you help with {scope}"),
                scope=place.scope,
            ),
        )
    if rng.random() < 0.6:
        blocks.append(
            expand(
                rng,
                rng.choice(_PROMPT["manner"]),
            )
        )
    separator = rng.choice((" ", " ", " ", "\n", "\n- "))
    text = identity + separator + separator.join(blocks)
    return re.sub(r"(?<!\.)\.\.(?!\.)", ".", text)


def hours_sentence(rng: random.Random, place: Business) -> str:
    text = place.hours_text
    return expand(
        rng,
        rng.choice(_PROMPT["hours"]),
        h=text,
        kind=place.kind_word,
    )


def menu_sentence(rng: random.Random, place: Business) -> str:
    """Say items and prices in one of several layouts."""
    form = rng.choice(
        (
            "{i} {p}",
            "{i} for {p}",
            "{i} ({p})",
            "{i}: {p}",
            "{i} at {p}",
            "{i} is {p}",
            "{i} costs {p}",
            "{i} - {p}",
        )
    )
    separator = "; " if ":" in form else ", "

    def listing(names: list[str]) -> str:
        return separator.join(form.format(i=name, p=place.items[name]) for name in names)

    if len(place.categories) > 1 and rng.random() < 0.5:
        parts = [
            f"{group.capitalize()}: {listing(names)}." for group, names in place.categories.items()
        ]
        return rng.choice(("", "", "Menu. ")) + " ".join(parts)
    body = listing(list(place.items))
    return rng.choice(
        (
            f"Menu: {body}.",
            f"We {rng.choice(('offer', 'sell', 'have', 'serve'))} {body}.",
            f"The menu: {body}.",
            f"Prices: {body}.",
            f"On the menu: {body}.",
            f"{body[:1].upper() + body[1:]}.",
        )
    )


def films_sentence(rng: random.Random, place: Business) -> str:
    parts = [
        f"{title} {rng.choice(('at', 'plays at'))} {join(times)}"
        for title, times in place.films.items()
    ]
    return rng.choice(("Now showing: ", "Playing today: ", "Films: ")) + "; ".join(parts) + "."


def category_words(group: str) -> tuple[str, ...]:
    """Return what a caller calls a category."""
    return {
        "drinks": ("drinks", "to drink"),
        "pastries": ("pastries", "cakes", "baked goods"),
        "food": ("food", "to eat"),
        "mains": ("mains", "to eat"),
        "rooms": ("rooms",),
        "desserts": ("desserts", "for dessert"),
        "services": ("services",),
        "tickets": ("tickets",),
    }.get(group, (plural(group),))
