"""Call moves of a caller who asks plainly: what there is and is not, closed days, the unknown."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..business import Business, category_words
from ..call import Call
from ..lexicon import DRINKS, MEALS, PASTRIES, SERVICES
from ..open_words import draw
from ..place_topics import AMENITIES, COMMON_NAMES, COMMON_SERVICES, TOPICS, WORDINGS
from ..wording import DAYS, article, join, plural

_DENY = "(sorry|i'm sorry|no, sorry), we don't (have|sell|offer|do) {i}.( {o}|)"

# The reply where the prompt is silent. It leads back, as a refusal does: after a run in which half
# of these ended without a question 0.65 of the card's refusals were whole, before 0.99.
_UNKNOWN = (
    "(I'm sorry|Sorry|I'm afraid), I don't (know that|have that information|have any information "
    "(on|about) that). ((Can|May) I help with (anything|something) else?|What else can I do for "
    "you?)"
)


def _place(call: Call) -> Business:
    assert call.place is not None
    return call.place


def _offer(call: Call) -> str:
    """One or two things that there are."""
    items = list(_place(call).items)
    named = [plural(item) for item in call.rng.sample(items, min(len(items), 2))]
    return f"{call.rng.choice(('We have', 'We do have', 'There are'))} {join(named)}."


def _words(text: str) -> set[str]:
    """Words without their plural ending."""
    return {word.removesuffix("es").removesuffix("s") for word in text.lower().split()}


def _absent(call: Call) -> str:
    """A dish, drink or service of which no word stands among the items."""
    place = _place(call)
    known = set().union(*(_words(item) for item in place.items))
    while True:
        if call.rng.random() < 0.5:
            name = call.rng.choice(COMMON_NAMES if place.sells_food else COMMON_SERVICES)
        else:
            lists = DRINKS + PASTRIES + MEALS if place.sells_food else SERVICES
            name = draw(call.rng, lists, call.held_out)
        if not _words(name) & known:
            return name


def _said(call: Call, name: str) -> str:
    """A thing as callers name it when they ask for its kind: `lattes`, `latte`."""
    return plural(name) if call.rng.random() < 0.5 else name


def absent(call: Call) -> None:
    """Something that is not there: no price is made up for it."""
    rng, name = call.rng, _absent(call)
    if rng.random() < 0.45:
        said = name
        call.user(
            "how much is {a}|how much (is|for) the {i}|what does {a} cost|what's the price of {a}|"
            "how much (do|does) {a} cost|and {a}, how much is that|what would {a} be|what do you "
            "charge for {a}|can you tell me the price of {a}",
            a=article(name),
            i=name,
        )
        said = plural(name)
    else:
        said = _said(call, name)
        call.user(
            "do you (have|sell|do|offer|serve|make) (any |){i}|have you got (any |){i}|is there "
            "(any |){i}|are there (any |){i}|what about {i}|any {i}|can i get {i}( there|)|you "
            "have {i}, right|do you happen to have {i}|got any {i}|i wonder if you have {i}",
            i=said,
        )
    call.agent(_DENY, "don't", kind="fact", i=said, o=_offer(call))


def of_a_kind(call: Call) -> None:
    """Things asked for by the last word of their names: `tea`, of which there is iced tea."""
    place, rng = _place(call), call.rng
    head = rng.choice(list(place.items)).split()[-1]
    found = [item for item in place.items if head in item.split()]
    call.user(
        "do you (have|sell|do|offer) (any |){i}|have you got (any |){i}|(what|which) (kind of "
        "|kinds of |){p} do you have|what {p} (are there|have you got)|is there (any |){i}|any {i}",
        i=_said(call, head),
        p=plural(head),
    )
    named = [f"{item} for {place.items[item]}" for item in found] if len(found) < 3 else found
    call.agent("yes, we have {l}.|we have {l}.", *found[:2], kind="fact", l=join(named))


def group_list(call: Call) -> None:
    """All of one category and nothing else."""
    place, rng = _place(call), call.rng
    group = rng.choice(list(place.categories))
    word = rng.choice(category_words(group))
    if word.startswith(("to ", "for ")):
        call.user(
            "what do you have {w}|what (is there|can i (get|have)|have you got) {w}|(is there|do "
            "you have) anything {w}|what would you have {w}",
            w=word,
        )
    else:
        call.user(
            "(what|which) {w} (do you (have|offer|sell|serve)|are there|have you got|can i "
            "(get|have)|are on the menu)|(tell me|list|what are) (the|your) {w}|what (kind|kinds|"
            "sort) of {w} do you have|what do you have in the way of {w}|your {w}, please|i'd like "
            "to hear the {w}|do you have (any |){w}",
            w=word,
        )
    named = place.categories[group]
    call.agent(
        "(sure, |yes, |of course, |)we have {l}.( what would you like?|)",
        *named[:3],
        kind="fact",
        l=join(named),
    )


def _amount(price: str) -> float:
    dollars, _, cents = re.sub(r"[^0-9. ]", "", price.replace(" dollars", ".")).partition(".")
    return float(dollars) + float(cents.strip() or 0) / 100


def extreme(call: Call) -> None:
    """The cheapest and the dearest, of a category or of all."""
    place, rng = _place(call), call.rng
    group = rng.choice((None, *place.categories))
    names = place.categories[group] if group else list(place.items)
    prices = sorted(_amount(place.items[name]) for name in names)
    if len(prices) < 2 or prices[0] == prices[1] or prices[-1] == prices[-2]:
        return absent(call)
    is_least = rng.random() < 0.65
    name = (min if is_least else max)(names, key=lambda item: _amount(place.items[item]))
    thing = {"drinks": "drink", "pastries": "pastry", "rooms": "room", "services": "service"}.get(
        group or "", "thing"
    )
    if group and thing == "thing":
        return absent(call)
    call.user(
        "what('s| is) (the|your) {s} {t}( you have| on the menu|)|which {t} is the {s}|(what|"
        "which) {t} (costs|is) the {m}",
        s=rng.choice(("cheapest", "least expensive"))
        if is_least
        else rng.choice(("most expensive", "dearest")),
        m="least" if is_least else "most",
        t=thing,
    )
    call.agent(
        "(that's |)the {i}(, at| for|, it's) {p}.", name, kind="fact", i=name, p=place.items[name]
    )
    return None


def is_it(call: Call) -> None:
    """A price that the caller believes, right or a neighbour's."""
    place, rng = _place(call), call.rng
    item, other = rng.choice(list(place.items)), rng.choice(list(place.items))
    believed, price = place.items[other], place.items[item]
    call.user(
        "is the {i} (still |){b}|the {i} is {b}, (right|isn't it)|so the {i} costs {b}",
        i=item,
        b=believed,
    )
    word = "Yes" if believed == price else "No"
    call.agent("{w}, the {i} is {p}.", price, item, kind="fact", w=word, i=item, p=price)


def two_prices(call: Call) -> None:
    place, rng = _place(call), call.rng
    if len(place.items) < 2:
        return absent(call)
    one, two = rng.sample(list(place.items), 2)
    call.user(
        "how much (are|is) (a|the) {i} and (a|the) {j}|what do the {i} and the {j} cost|price of "
        "the {i} and the {j}",
        i=one,
        j=two,
    )
    p, q = place.items[one], place.items[two]
    call.agent("the {i} is {p} and the {j} is {q}.", p, q, kind="fact", i=one, j=two, p=p, q=q)
    return None


def closed_day(call: Call) -> None:
    """Whether there is anybody on a day, in many wordings; half the time on a closed day."""
    place, rng = _place(call), call.rng
    closed = [day for day in DAYS if place.hours[day] is None]
    day = rng.choice(closed) if closed and rng.random() < 0.5 else rng.choice(DAYS)
    asks_closed = rng.random() < 0.15
    call.user(
        "are you (guys |)closed (on |){d}(s|)|you're closed on {d}, right"
        if asks_closed
        else "are you (guys |still |also |)open (on |){d}(s|)|(do|will) you (be |)(open|work) (on "
        "|){d}|can i come (by|in|over) on {d}|is the {k} open (on |){d}|i want to come on {d}, are "
        "you (there|open)|are you there on {d}|do you open (at all |)on {d}|what about {d}|(and "
        "|how about ){d}|what are your {d} hours|when can i come on {d}|{d} hours|is {d} okay to "
        "come|until when are you open on {d}|how late are you open {d}(s|)|what time do you "
        "(open|close) on {d}",
        d=day,
        k=place.kind_word,
    )
    opening = place.hours[day]
    if opening is None:
        call.agent(
            "yes, we're closed on {d}."
            if asks_closed
            else "(sorry|i'm sorry|no), we're closed on {d}.",
            "closed",
            kind="fact",
            d=day,
        )
        return
    call.agent(
        "(no, |)on {d} we're open from {o} to {c}."
        if asks_closed
        else "on {d} we're open from {o} to {c}.|we're open from {o} to {c} on {d}.",
        *opening,
        kind="fact",
        d=day,
        o=opening[0],
        c=opening[1],
    )


def closed_days(call: Call) -> None:
    """Ask which days are closed, or whether every day is open."""
    place, rng = _place(call), call.rng
    closed = [day for day in DAYS if place.hours[day] is None]
    call.user(
        "(which|what) days are you closed|on (which|what) day are you (not open|closed)|when are "
        "you closed|are you open every day|are you open all week|are you open seven days a week|"
        "is there a day you're closed|what day are you closed|do you have a day off"
    )
    if closed:
        call.agent("we're closed on {d}.", *closed[:2], "closed", kind="fact", d=join(closed))
    else:
        call.agent("we're open every day.", "every day", kind="fact")
    if rng.random() < 0.4:
        closed_day(call)


def weekend(call: Call) -> None:
    place = _place(call)
    call.user(
        "are you open on (weekends|the weekend)|what about the weekend|do you work on weekends|"
        "what are your weekend hours|(are you|is it) open at the weekend"
    )
    saturday, sunday = place.hours["Saturday"], place.hours["Sunday"]
    if saturday is None and sunday is None:
        call.agent("(sorry|no), we're closed on the weekend.", "closed", kind="fact")
        return
    parts = [
        f"on {day} we're " + (f"open from {at[0]} to {at[1]}" if at else "closed")
        for day, at in (("Saturday", saturday), ("Sunday", sunday))
    ]
    if saturday == sunday:
        assert saturday is not None
        parts = [f"on the weekend we're open from {saturday[0]} to {saturday[1]}"]
    call.reply(join(parts), *(saturday or sunday or ()), kind="fact")


def topic(call: Call) -> None:
    """A fact of the prompt, in more wordings."""
    place, rng = _place(call), call.rng
    known = [name for name in place.facts if name != "silent"]
    if not known:
        return nobody_knows(call)
    name = rng.choice(known)
    questions, _, reply, value = place.facts[name]
    call.user(WORDINGS[name] if name in WORDINGS and rng.random() < 0.6 else questions)
    call.agent(reply, value, kind="fact", v=value)
    return None


def nobody_knows(call: Call) -> None:
    """A topic of which the prompt is silent: nothing is made up."""
    place, rng = _place(call), call.rng
    if rng.random() < 0.2:
        call.user(
            "do you have {a}|is there {a}|have you got {a}|what about {a}|can you tell me about "
            "{a}|do you (offer|know if you have) {a}",
            a=rng.choice(AMENITIES),
        )
    else:
        silent = [(name, questions) for name, questions, *_ in TOPICS if name not in place.facts]
        # How to pay and where to park are what callers ask first.
        often = [pair for pair in silent if pair[0] in WORDINGS]
        name, questions = rng.choice(often if often and rng.random() < 0.7 else silent)
        if name == "special" or (name == "nearby" and "street" in place.facts):
            return topic(call)
        call.user(WORDINGS[name] if name in WORDINGS and rng.random() < 0.6 else questions)
    call.agent(_UNKNOWN)
    return None


MOVES: tuple[tuple[Callable[[Call], None], float], ...] = (
    (absent, 13),
    (of_a_kind, 8),
    (group_list, 12),
    (extreme, 3),
    (is_it, 2),
    (two_prices, 3),
    (closed_day, 13),
    (closed_days, 3),
    (weekend, 2),
    (topic, 8),
    (nobody_knows, 17),
)
