"""Call moves about the place itself: hours, prices, the menu, facts, names, and what is unknown."""

from __future__ import annotations

from ..business import Business, category_words
from ..call import Call
from ..lexicon import DRINKS, MEALS, PASTRIES
from ..open_words import draw
from ..place_topics import PLACE_FACTS
from ..wording import DAYS, article, expand, join, plural

# The reply to a question that the prompt is silent about.
_UNKNOWN = (
    "(I'm sorry|Sorry), I don't (know that|have that information)(.| here.)( (Can|May) I "
    "help with (anything|something) else?|)|(I'm sorry|I'm afraid|Sorry), I don't have (any "
    "|)information (on|about) that.( Anything else?|)"
)


def _place(call: Call) -> Business:
    assert call.place is not None
    return call.place


def _day(call: Call) -> tuple[str, str]:
    """A weekday and how the caller names it."""
    place, rng = _place(call), call.rng
    if place.today and rng.random() < 0.5:
        ahead = rng.choice((0, 0, 1))
        day = DAYS[(DAYS.index(place.today) + ahead) % 7]
        return day, "today" if ahead == 0 else "tomorrow"
    day = rng.choice(DAYS)
    return day, f"on {day}" + ("s" if rng.random() < 0.15 else "")


def hours_of_day(call: Call) -> None:
    place, rng = _place(call), call.rng
    day, spoken = _day(call)
    opening = place.hours[day]
    said = f"on {day}" if not spoken.startswith("to") or rng.random() < 0.3 else spoken
    form = rng.randrange(4)
    if form == 0:
        call.user(
            "what time do you open {d}|when do you open {d}|how early (are|do) you open {d}|"
            "(could|can) you tell me when you open {d}",
            d=spoken,
        )
    elif form == 1:
        call.user(
            "what time do you close {d}|when do you close {d}|how late are you open {d}|"
            "until when are you open {d}|how long are you open {d}",
            d=spoken,
        )
    elif form == 2:
        call.user(
            "are you open {d}|are you guys open {d}|do you open {d}|i wanted to ask if "
            "you're open {d}",
            d=spoken,
        )
    else:
        call.user(
            "what (are your|are the|'s your) hours {d}|when are you open {d}|what time are "
            "you open {d}|(can|could) you tell me your (opening |)hours {d}|i'd like to know "
            "(your|the) (opening |)hours {d}",
            d=spoken,
        )
    if opening is None:
        call.agent(
            "(I'm sorry|Sorry), (but |)we're closed {d}.|No, we're closed {d}."
            if form == 2
            else "(I'm sorry|Sorry), (but |)we're closed {d}.|We're closed {d}.",
            "closed",
            kind="fact",
            d=said,
        )
        return
    opens, closes = opening
    if form == 0:
        call.agent("we open at {o} {d}.|{d}, we open at {o}.", opens, kind="fact", o=opens, d=said)
    elif form == 1:
        call.agent(
            "we close at {c} {d}.|{d}, we're open until {c}.", closes, kind="fact", c=closes, d=said
        )
    else:
        call.agent(
            ("Yes, " if form == 2 else "")
            + "{d} we're open from {o} to {c}.|"
            + ("Yes, " if form == 2 else "")
            + "we're open from {o} to {c} {d}.",
            opens,
            closes,
            kind="fact",
            o=opens,
            c=closes,
            d=said,
        )


def hours_in_general(call: Call) -> None:
    place = _place(call)
    call.user(
        "what are your (opening |)hours|when are you open|what time are you open|(can|could) "
        "you tell me (your|the) (opening |)hours|i'd like to know (your|the) opening hours|"
        "your hours please"
    )
    call.reply(expand(call.rng, "(Sure, |Of course, |)we're open {h}.", h=place.hours_text))


def price(call: Call) -> None:
    place, rng = _place(call), call.rng
    item = rng.choice(list(place.items))
    said = item if rng.random() < 0.6 else article(item)
    the = "the " + item if said == item else said
    call.user(
        "how much is {t}|what does {t} cost|what's the price of {t}|how much for {t}|how much "
        "does {t} cost|what do you charge for {t}|and {t}, how much is (that|it)|(can|could) "
        "you tell me (the price of|how much) {t}( is|)",
        t=the,
    )
    cost = place.items[item]
    call.agent(
        "(the|one|{a}) {i} is {p}.|(the|our) {i} costs {p}.|(the|our) {i} is {p}(. "
        "(would you like one|anything else)?|.)|that's {p} for {a} {i}.",
        cost,
        item,
        kind="fact",
        a=article(item).split()[0],
        i=item,
        p=cost,
    )


def price_of_it(call: Call) -> None:
    """A price, then the price of another thing with `and the ...`."""
    place, rng = _place(call), call.rng
    if len(place.items) < 2:
        return price(call)
    price(call)
    item = rng.choice(list(place.items))
    call.user(
        "and (the|a) {i}|what about (the|a) {i}|how about (the|a) {i}|and how much is the {i}",
        i=item,
    )
    call.agent(
        "the {i} is {p}.|(that's|it's) {p} for the {i}.",
        place.items[item],
        item,
        kind="fact",
        i=item,
        p=place.items[item],
    )


def is_there(call: Call) -> None:
    place, rng = _place(call), call.rng
    known = rng.random() < 0.5
    if known or not place.sells_food:
        item = rng.choice(list(place.items))
        call.user(
            "do you have {i}|do you (sell|offer|do) {i}|have you got {i}|is there {a}",
            i=plural(item),
            a=article(item),
        )
        call.agent(
            "(yes|yes, we do|we do), (the|our|{a}) {i} is {p}.|yes, we have {s} for {p}.",
            place.items[item],
            item,
            kind="fact",
            a=article(item).split()[0],
            i=item,
            s=plural(item),
            p=place.items[item],
        )
        return
    item = _absent_item(call)
    call.user(
        "do you have {i}|do you (sell|offer|do) {i}|have you got {i}|is there {a}",
        i=plural(item),
        a=article(item),
    )
    offer = rng.sample(list(place.items), min(len(place.items), 2))
    call.agent(
        "(sorry|i'm sorry|no, sorry), we don't have {i}. (we do have|we have|how about) {o}.",
        "don't have",
        kind="fact",
        i=plural(item),
        o=join([plural(name) for name in offer]),
    )


def _absent_item(call: Call) -> str:
    place = _place(call)
    while True:
        item = draw(call.rng, DRINKS + PASTRIES + MEALS, call.held_out)
        if not any(item in name or name in item for name in place.items):
            return item


def menu(call: Call) -> None:
    place, rng = _place(call), call.rng
    groups = place.categories
    if len(groups) > 1 and rng.random() < 0.35:
        group = rng.choice(list(groups))
        words = category_words(group)
        if group == "pastries" and not {"food", "mains"} & set(groups):
            words += ("to eat", "to eat", "sweet", "food")
        word = rng.choice(words)
        named = groups[group][:6]
        if word.startswith(("to ", "for ")) or word == "sweet":
            call.user(
                "what do you have {w}|what (is there|can i (get|have)|have you got|do you serve) "
                "{w}|do you have (anything|something) {w}",
                w=word,
            )
        else:
            call.user(
                "what {w} do you have|what kind of {w} do you have|which {w} are there", w=word
            )
    else:
        named = list(place.items)[:7]
        call.user(
            "what do you have|what's on the menu|what do you (offer|serve|sell)|what can i "
            "(get|order|have)|(can|could) you (tell me|read me|list) the menu|what are my "
            "options|what (is there|have you got)"
        )
    call.reply(
        expand(
            rng,
            "(Sure, |Of course, |Well, |)we have {l}.( What (would you like|can I get you)?|)",
            l=join(named),
        ),
        *named[:2],
        kind="fact",
    )


def fact(call: Call) -> None:
    place, rng = _place(call), call.rng
    known = [topic for topic in place.facts if topic != "silent"]
    if not known:
        return hours_of_day(call)
    questions, _, reply, value = place.facts[rng.choice(known)]
    call.user(questions)
    call.agent(reply, value, kind="fact", v=value)
    return None


def unknown_fact(call: Call) -> None:
    place, rng = _place(call), call.rng
    topic, questions = rng.choice(place.unknown)
    if (
        topic in ("nearby", "cancel", "breakfast", "special", "kids", "gluten")
        and not place.sells_food
    ):
        topic, questions = next((t, q) for t, q, *_ in PLACE_FACTS if t == "founded")
        if "founded" in place.facts:
            return fact(call)
    call.user(questions)
    call.agent(_UNKNOWN)
    return None


def identity(call: Call) -> None:
    place, rng = _place(call), call.rng
    form = rng.randrange(4)
    if form == 0:
        call.user(
            "what('s| is) your name|who are you|who am i (speaking|talking) (to|with)|(sorry, "
            "|)what was your name( again|)"
        )
        call.agent(
            "(I'm|My name is|This is) {a}(.| from {n}.|, from {n}.)",
            place.agent,
            kind="fact",
            a=place.agent,
            n=place.name,
        )
    elif form == 1:
        call.user(
            "what (place|business|company) is this|who did i (call|reach)|is this (the right "
            "number for |){n}|where am i calling",
            n=place.name,
        )
        call.agent(
            "(this is|you've reached) {n}(.|. How can I help?)",
            place.name,
            kind="fact",
            n=place.name,
        )
    elif form == 2:
        call.user(
            "are you (a robot|a real person|human|an ai|a machine|a bot|a computer)|am i "
            "talking to a (robot|machine|person|human)"
        )
        call.agent(
            "(I'm|I am) (a|the) voice assistant (for|of|at) {n}.( How can I help?|)",
            place.name,
            n=place.name,
        )
    else:
        call.user("what can you (do|help (me |)with)|how can you help( me|)|what do you do")
        call.agent("I can help (you |)with {s}.( What would you like?|)", s=place.scope)


def ticket(call: Call) -> None:
    """Show times of a film."""
    place, rng = _place(call), call.rng
    if not place.films:
        return price(call)
    if rng.random() < 0.4:
        call.user(
            "what('s| is) (playing|on|showing)( today| tonight|)|which (films|movies) (are "
            "on|do you have)( tonight|)"
        )
        titles = list(place.films)
        call.reply(f"We're showing {join(titles)}.", *titles, kind="fact")
        return None
    title = rng.choice(list(place.films))
    call.user(
        "when is {t}( playing| on|)|what time does {t} start|when can i see {t}|what are the "
        "(show |)times for {t}",
        t=title,
    )
    times = place.films[title]
    call.reply(
        f"{title} {rng.choice(('plays at', 'is on at', 'starts at'))} {join(times)}.",
        *times,
        kind="fact",
    )
    return None
