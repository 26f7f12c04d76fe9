"""Call moves that fill a booking slot by slot, and requests to things at home."""

from __future__ import annotations

from dataclasses import dataclass

from ..call import Call
from ..lexicon import FIRST_NAMES, HOME_DEVICES, HOME_ROOMS, TOWNS, entries
from ..open_words import draw
from ..wording import DAYS, article, expand, join, number_words

_MONTHS = entries("months")
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
    "thirteenth fourteenth fifteenth"
).split()


@dataclass(frozen=True, slots=True)
class Slot:
    """One thing a booking needs: the agent's question, and forms of the caller's value."""

    name: str
    question: str
    forms: str  # how the value stands inside a request


_SLOTS = {
    "day": Slot(
        "day",
        "(for |)(which|what) day|what (day|date) (would you like|works for you|"
        "should i book)|when (would you like to come|should i book it for)",
        "{v}",
    ),
    "time": Slot(
        "time", "(at |)what time|what time (would you like|works( for you|)|should it be)", "at {v}"
    ),
    "people": Slot(
        "people",
        "(for |)how many (people|guests|persons)|how many (people |of you |)will (there|that) be",
        "for {v}",
    ),
    "name": Slot(
        "name",
        "(what|under which|under what) name|what name (is it|should i put) under|"
        "(can|may) i have your name",
        "under {v}",
    ),
    "nights": Slot("nights", "how many nights|how long will you (stay|be staying)", "for {v}"),
    "from": Slot(
        "from",
        "where (should we pick you up|are you|do you need picking up|will you be)|"
        "what's the pick up (place|point)",
        "from {v}",
    ),
    "to": Slot(
        "to",
        "where (are you going|would you like to go|to|should we take you)|what's your destination",
        "to {v}",
    ),
    "count": Slot("count", "how many tickets( would you like| do you need|)", "{v}"),
}
_PLANS = {
    "restaurant": ("a table", ("people", "day", "time", "name")),
    "cafe": ("a table", ("people", "day", "time", "name")),
    "bakery": ("a table", ("people", "time", "name")),
    "hotel": ("a {x}", ("nights", "day", "name")),
    "ride": ("a ride", ("from", "to", "time", "name")),
    "cinema": ("tickets", ("count", "day", "time", "name")),
    "salon": ("a {x}", ("day", "time", "name")),
}


def spoken_day(call: Call) -> str:
    rng = call.rng
    form = rng.random()
    if form < 0.5:
        return rng.choice(DAYS)
    if form < 0.75:
        return rng.choice(
            (
                "today",
                "tomorrow",
                "tonight",
                f"next {rng.choice(DAYS)}",
                "the day after tomorrow",
                f"this {rng.choice(DAYS)}",
            )
        )
    return f"{rng.choice(_MONTHS)} {rng.choice(_ORDINALS)}"


def spoken_time(call: Call) -> str:
    """A time as it is spoken; replies repeat it as it was said."""
    rng = call.rng
    hour, minute = rng.randint(1, 12), rng.choice((0, 0, 0, 30, 30, 15, 45))
    part = rng.choice(("", "", " pm", " am", " p m", " in the evening", " in the afternoon"))
    if call.style == "written" and rng.random() < 0.5:
        return f"{hour}{f':{minute:02d}' if minute else ''} {rng.choice(('am', 'pm'))}"
    if minute == 30 and rng.random() < 0.4:
        return f"half past {number_words(hour)}"
    if minute == 0 and not part and rng.random() < 0.3:
        return f"{number_words(hour)} o'clock"
    return number_words(hour) + (f" {number_words(minute)}" if minute else "") + part


def _value(call: Call, slot: str) -> str:
    rng = call.rng
    match slot:
        case "day":
            return spoken_day(call)
        case "time":
            return spoken_time(call)
        case "people":
            count = rng.randint(1, 12)
            return (
                rng.choice((number_words(count), f"{number_words(count)} people"))
                if count > 1
                else "one"
            )
        case "name":
            return draw(rng, FIRST_NAMES, call.held_out)
        case "nights":
            count = rng.randint(2, 9)
            return f"{number_words(count)} nights"
        case "count":
            return f"{number_words(rng.randint(2, 8))} tickets"
        case _:
            if rng.random() < 0.4:
                return f"{draw(rng, FIRST_NAMES, call.held_out)} street"
            return draw(rng, TOWNS, call.held_out)


def _clause(plan: str, values: dict[str, str]) -> str:
    """`a table for four on Friday at seven under Maria`."""
    parts = [values["count"] if "count" in values else plan]
    for name, value in values.items():
        if name == "count":
            continue
        form = _SLOTS[name].forms
        if name == "day" and value.split()[0] in (*DAYS, *_MONTHS):
            form = "on {v}"
        parts.append(form.format(v=value))
    return " ".join(parts)


def booking(call: Call) -> None:
    """Ask for what is missing, read the booking back, take a yes or a change."""
    rng, place = call.rng, call.place
    assert place is not None
    plan, needed = _PLANS[place.kind]
    plan = plan.format(x=rng.choice(list(place.items)))
    if plan[:3] == "a a" or plan[:3] == "a e" or plan[:3] == "a o":
        plan = article(plan[2:])
    slots = list(needed)
    if rng.random() < 0.3:
        slots.remove("name")
    known = set(rng.sample(slots, rng.choice((0, 1, 1, 2, min(3, len(slots))))))
    values = {name: _value(call, name) for name in slots}
    given = {name: values[name] for name in slots if name in known}
    film = f" for {rng.choice(list(place.films))}" if place.films else ""
    call.user(
        "(i'd like to (book|reserve|get|order)|can i (book|reserve|get)|could i (book|reserve)|"
        "i need|i want to book|please book( me|)|do you have) {c}( please|)",
        c=_clause(plan, given) + film,
    )
    missing = [name for name in slots if name not in given]
    for name in missing:
        words = tuple(given.values())[:2] if name == missing[0] else ()
        lead = rng.choice(("Sure. ", "Of course. ", "Okay. ", "Great. ", "", "Sure, ", "Thanks. "))
        if words and rng.random() < 0.5:
            lead = f"Sure, {_clause(plan, given)}. "
        question = expand(rng, _SLOTS[name].question) + "?"
        call.reply(
            lead
            + (question if lead.endswith(". ") or not lead else question[:1].lower() + question[1:])
        )
        value = values[name]
        call.user(
            "{f}|{f}|{f} please|let's say {v}|{v}|{v} please|{v} if possible|"
            "i think {v}|make it {v}",
            v=value,
            exact=name == "time",
            f=_SLOTS[name].forms.format(v=value),
        )
        given[name] = value
    ordered = {name: values[name] for name in slots}
    if rng.random() < 0.7:
        call.agent(
            "(so that's|that's|okay, so|alright,|so) {c}(, right| , correct|. is that right|"
            ". shall i book it)?",
            *list(ordered.values())[:3],
            kind="fact",
            c=_clause(plan, ordered) + film,
        )
        if rng.random() < 0.25:
            name = rng.choice(slots)
            ordered[name] = _value(call, name)
            call.user(
                "(no|sorry|actually|wait)(,|) (make (that|it) |it's |i meant |can we do |change "
                "(it|that) to ){f}",
                f=_SLOTS[name].forms.format(v=ordered[name]),
            )
            call.agent(
                "(okay|sure|no problem|got it)(,|) {c}. (is that right|correct|shall i book it)?",
                ordered[name],
                kind="fact",
                c=_clause(plan, ordered) + film,
            )
        call.user(
            "yes|yes please|yeah|yep|correct|that's right|right|sure|please do|yes that's "
            "right|perfect|sounds good|go ahead"
        )
    lead = f"{ordered['name']}, " if "name" in ordered and rng.random() < 0.5 else ""
    call.reply(
        rng.choice(("Great, ", "Perfect, ", "Thank you, ", "All done, ", "Wonderful, "))
        + lead
        + rng.choice(
            (
                "you're all set",
                "it's booked",
                "your booking is confirmed",
                "I've booked " + _clause(plan, {n: ordered[n] for n in slots if n != "name"}),
            )
        )
        + "."
    )
    call.number = ""


def home_prompt(call: Call) -> tuple[str, dict[str, str]]:
    """A prompt that lists devices at home and their states."""
    rng = call.rng
    states: dict[str, str] = {}
    for _ in range(rng.randint(2, 7)):
        device = f"{rng.choice(HOME_ROOMS)} {rng.choice(HOME_DEVICES)}"
        states[device] = rng.choice(("on", "off"))
    if rng.random() < 0.4:
        states[f"{rng.choice(HOME_ROOMS)} temperature"] = f"{rng.randint(14, 27)} degrees"
    listed = [expand(rng, "{d}: {s}|the {d} is {s}", d=d, s=s) for d, s in states.items()]
    name = draw(rng, FIRST_NAMES, call.held_out)
    text = expand(
        rng,
        "you are {a}, (a|the) voice assistant (for|of) (a smart home|this house|the "
        "home).|you are {a}. you (control|look after) the devices (at home|in the house).",
        a=name,
    )
    return (
        f"{text} {rng.choice(('Devices', 'States', 'Now', 'At home'))}: {'; '.join(listed)}.",
        states,
    )


def home_request(call: Call, states: dict[str, str]) -> None:
    """Switch something or ask for its state."""
    rng = call.rng
    device = rng.choice(list(states))
    state = states[device]
    if not state.startswith("o"):
        call.user(
            "what('s| is) the {d}|how (warm|cold) is it in the {r}|tell me the {d}",
            d=device,
            r=device.removesuffix(" temperature"),
        )
        call.agent("(the {d} is|it's) {s}.", state, kind="fact", d=device, s=state)
        return
    if rng.random() < 0.4:
        asked = rng.choice(("on", "off"))
        call.user(
            "is the {d} {q}|(can you |)check (if|whether) the {d} is {q}|did i leave the {d} {q}",
            d=device,
            q=asked,
        )
        call.agent(
            "{y}, the {d} is {s}.",
            state,
            device,
            kind="fact",
            d=device,
            s=state,
            y="Yes" if asked == state else "No",
        )
        return
    asked = rng.choice(("on", "off"))
    call.user(
        "(turn|switch) {q} the {d}( please|)|(turn|switch) the {d} {q}( please|)|{d} {q}|(can|"
        "could) you (turn|switch) (the |){d} {q}",
        d=device,
        q=asked,
    )
    if asked == state:
        call.agent("the {d} is already {s}.", "already", device, kind="fact", d=device, s=state)
    else:
        states[device] = asked
        call.agent(
            "(okay|sure|done), the {d} is (now |){s}.|(okay|sure), (turning|switching) {s} the "
            "{d}.",
            device,
            asked,
            kind="fact",
            d=device,
            s=asked,
        )


def home_list(call: Call, states: dict[str, str]) -> None:
    """Ask which things are on."""
    active = [device for device, state in states.items() if state == "on"]
    call.user("what('s| is) (on|turned on|running)|which (devices|things) are on|is anything on")
    if active:
        call.reply(
            f"The {join(active)} {'is' if len(active) == 1 else 'are'} on", *active[:2], kind="fact"
        )
    else:
        call.agent("nothing is on( right now|).|everything is off.")
