"""Call moves around an order: items, extras, corrections, read-backs, digits and names."""

from __future__ import annotations

from ..business import Business
from ..call import Call
from ..lexicon import DRINKS, MEALS, MILKS, PASTRIES, SIZES, entries
from ..open_words import draw
from ..wording import article, counted, digit_words, expand, join, number_words, plural

_NUMBERS = entries("numbers")
_ORDER_OPENERS = (
    "(i'd like|i would like|i'll have|i'll take|i want|i wanna get|give me|let me get|let me have|"
    "can i (get|have)|could i (get|have)|may i have|i'll get|i need|please get me)"
)


def _place(call: Call) -> Business:
    assert call.place is not None
    return call.place


def _said(line: tuple[int, str, str], spoken: bool) -> str:
    """An order line in words: `two large lattes with oat milk`."""
    count, item, extra = line
    text = (
        counted(count, item)
        if not spoken
        else (article(item) if count == 1 else counted(count, item))
    )
    return f"{text} with {extra}" if extra else text


def _order_text(call: Call) -> str:
    return join([_said(line, spoken=False) for line in call.order])


def _draw_line(call: Call) -> tuple[int, str, str]:
    rng, place = call.rng, _place(call)
    item = rng.choice(list(place.items))
    is_drink = item in DRINKS or item in place.categories.get("drinks", ())
    if is_drink and rng.random() < 0.5:
        item = f"{rng.choice(SIZES)} {item}"
    extra = rng.choice(MILKS) if is_drink and rng.random() < 0.25 else ""
    return rng.choices((1, 2, 3, 4, 5, 6), weights=(70, 14, 7, 4, 3, 2))[0], item, extra


def order(call: Call) -> None:
    """One to three items, read back; a hesitation may stand in mid-sentence."""
    rng = call.rng
    lines = [_draw_line(call) for _ in range(rng.choices((1, 2, 3), weights=(50, 40, 10))[0])]
    lines = list({item: (count, item, extra) for count, item, extra in lines}.values())
    if call.order and rng.random() < 0.5:
        opener = expand(
            rng,
            "and|also|(can|could) i also (get|have)|i'd also like|and (can i|i'll) "
            "get|please add|and then",
        )
    else:
        call.order = []
        opener = expand(rng, _ORDER_OPENERS)
    pause = rng.choice(("", "", "", ", uh", ", um", ", let me see", "..."))
    listed = join([_said(line, spoken=True) for line in lines])
    if pause and " and " in listed:
        head, _, tail = listed.rpartition(" and ")
        listed = f"{head} and{pause} {tail}"
    tail = rng.choice(("", "", " please", " please", " to go", " to go please", " for pickup"))
    call.user("{o} {l}{t}", o=opener, l=listed, t=tail)
    call.order += lines
    words = tuple(item for _, item, _ in lines)
    call.agent(
        "(sure|of course|okay|great|alright|got it|certainly), {l}. (anything else?|is that "
        "(right|all|everything)?|(can|may) i get you anything else?|what else?|(would you "
        "like|do you want) anything else?)|{l}, (coming up|got it). anything else?",
        *words,
        kind="fact",
        l=_order_text(call)
        if rng.random() < 0.5
        else join([_said(line, spoken=False) for line in lines]),
    )


def more(call: Call) -> None:
    """A bare yes to `anything else?`."""
    order(call)
    if not str(call.messages[-1]["content"]).endswith("else?"):
        return
    call.user("yes|yes please|yeah|yes i do|sure|yep|actually yes")
    call.agent(
        "(sure|okay|of course|great)(,|.) (what (else |)(would you like|can i get you)|go "
        "ahead|what else)?"
    )
    order(call)


def unavailable(call: Call) -> None:
    """An item that is not on the menu."""
    rng, place = call.rng, _place(call)
    while True:
        item = draw(rng, DRINKS + PASTRIES + MEALS, call.held_out)
        if not any(item in name or name in item for name in place.items):
            break
    offer = rng.sample(list(place.items), min(len(place.items), 2))
    call.user(_ORDER_OPENERS + " {i}(, please|)", i=article(item))
    call.agent(
        "(sorry|i'm sorry), we don't have {s}. (would you like {o}?|we do have {o}.|how about "
        "{o}?)",
        "don't have",
        kind="fact",
        s=plural(item),
        o=join([article(name) for name in offer], "or"),
    )


def correct(call: Call) -> None:
    """Change, replace or drop a line of the order."""
    rng = call.rng
    if not call.order:
        return order(call)
    at = rng.randrange(len(call.order))
    count, item, extra = call.order[at]
    form = rng.randrange(5)
    new = _draw_line(call)
    while new[1] == item:
        other = (*PASTRIES, *DRINKS)
        new = (new[0], rng.choice(other) if call.held_out else draw(rng, other, False), new[2])
    if form == 0:
        count = count + 1 if count == 1 else 1
        call.order[at] = (count, item, extra)
        call.user(
            "(actually|sorry|oh|wait)(,|) (make that|can you make that|i need|make it) {n}|"
            "actually {n} please|{n}, not {m}",
            n=counted(count, item)
            if rng.random() < 0.6 or len(call.order) > 1
            else number_words(count),
            m=number_words(3 if count == 1 else 1),
        )
    elif form == 1:
        call.order[at] = new
        call.user(
            "(actually|sorry|oh wait|no|hold on)(,|) (not the {i}|no {i}), {n}( instead|)|"
            "(can|could) i (get|have) {n} instead of the {i}|change the {i} to {n}|(actually, |)"
            "make the {i} {n}",
            i=item,
            n=_said(new, spoken=True),
        )
    elif form == 2 and len(call.order) > 1:
        del call.order[at]
        call.user(
            "(actually|sorry|wait)(,|) (drop|cancel|skip|remove|forget|leave out) the {i}|(i "
            "don't want|no) the {i}( anymore|)|take (off|out) the {i}|without the {i}",
            i=item,
        )
    else:
        call.order = [new]
        call.user(
            "(actually|no|wait|hold on|stop)(,|) (just|only|i'll just have|i only want|make "
            "it|let me just get) {n}( please|)|(never mind|forget) (all |)that(,|) (just|i'll "
            "have) {n}( please|)",
            n=_said(new, spoken=True),
        )
    call.agent(
        "(okay|sure|no problem|got it|of course|alright), (so that's |that's |just |now "
        "it's |)(l|)".replace("(l|)", "{l}")
        + ".( anything else?| is that right?|)",
        *(line[1] for line in call.order[:2]),
        kind="fact",
        l=_order_text(call),
    )
    return None


def confirm(call: Call) -> None:
    """Read the order back and take a one-word answer."""
    rng = call.rng
    if not call.order:
        return order(call)
    if rng.random() < 0.5:
        call.user(
            "(what did i order|what do i have|can you read (that|it|my order) back|what's my "
            "order)( so far|)|(can|could) you repeat my order"
        )
        call.agent(
            "(you have|that's|you ordered|sure,) {l}.( is that right?|)",
            *(line[1] for line in call.order[:2]),
            kind="fact",
            l=_order_text(call),
        )
        return None
    call.user(
        "(no|nope|no thanks|no thank you)(,|) (that's (all|it|everything)|that is all|that'll "
        "be all)|that's (all|it)( thanks| thank you|)|nothing else|that's everything|no that's "
        "it for me|no"
    )
    call.agent(
        "(great|okay|perfect|alright), (so |)that's {l}. is that (right|correct)?|(okay|sure), "
        "{l}. (shall i place the order|is that correct)?",
        *(line[1] for line in call.order[:2]),
        kind="fact",
        l=_order_text(call),
    )
    call.user(
        "yes|yes|yes please|yeah|yep|correct|that's right|right|sure|yes it is|exactly|yes "
        "that's (right|correct)|perfect|sounds good|uh huh|okay"
    )
    if rng.random() < 0.5:
        return ask_name(call)
    call.agent(
        "(great|perfect|thank you|wonderful|okay)(,|) (your order|it) will be ready (soon|"
        "shortly|in a few minutes).|(thanks|thank you), (i've placed your order|your order is "
        "in|coming right up)."
    )
    return None


def cost_of_order(call: Call) -> None:
    """Prices of what was ordered, item by item: no sums are invented."""
    rng, place = call.rng, _place(call)
    names = [name for name in place.items if any(name in line[1] for line in call.order)][:2]
    if not names:
        return order(call)
    call.user(
        "how much is (that|it)( all together| in total|)|what's the total|how much (do i owe|"
        "will that be)|what does (that|it) (cost|come to)"
    )
    call.reply(
        join(
            [
                f"{'the' if rng.random() < 0.5 or index else 'The'} {name} is {place.items[name]}"
                for index, name in enumerate(names)
            ]
        )
        + rng.choice(("", " each" if len(names) == 1 and call.order[0][0] > 1 else "")),
        *(place.items[name] for name in names),
        kind="fact",
    )
    return None


def ask_name(call: Call) -> None:
    """The agent asks for a name; the caller says or spells it."""
    rng = call.rng
    call.agent(
        "(great|okay|sure|perfect|thanks)(,|.) (what name is (the order|that|it) (for|under)|"
        "(can|may|could) i (have|get) (your|a) name( please|)|what('s| is) (your|the) name)?"
    )
    name = call.caller = _caller_name(call)
    if rng.random() < 0.25:
        call.user(
            "{s}|it's {s}|{n}, (that's |)spelled {s}", exact=True, n=name, s=" ".join(name.lower())
        )
    else:
        call.user(
            "{n}|it's {n}|my name is {n}|{n} please|i'm {n}|this is {n}|under {n}|the name is "
            "{n}|put it under {n}",
            n=name,
        )
    call.agent(
        "(thanks|thank you|great|got it|perfect)(,|) {n}. (it will be ready (soon|shortly)|"
        "your order is in|you're all set|see you soon|i've got that down).",
        name,
        kind="fact",
        n=name,
    )


def _caller_name(call: Call) -> str:
    from ..lexicon import FIRST_NAMES, LAST_NAMES, invented_word

    rng = call.rng
    first = draw(rng, FIRST_NAMES, call.held_out)
    if rng.random() < 0.1:
        return invented_word(rng, call.held_out)
    return f"{first} {draw(rng, LAST_NAMES, call.held_out)}" if rng.random() < 0.25 else first


def digits(call: Call) -> None:
    """A phone, booking or card number, read back; sometimes corrected."""
    rng = call.rng
    what = rng.choice(_NUMBERS)
    if rng.random() < 0.5:
        call.agent(
            "(sure|okay|of course|thanks|great)(,|.) (what('s| is)|(can|may|could) i have) "
            "your {w}( please|)?",
            w=what,
        )
        lead = (
            expand(
                rng, "(it's |it is |sure it's |that's |yes |okay |my {w} is |the {w} is ||)", w=what
            )
            + " "
        )
    else:
        lead = (
            expand(
                rng,
                "my {w} is |the {w} is |here's my {w} |my {w}'s |(you can |)(call|reach) "
                "me (at|on) |i have (a|the) {w} |it's about {w} ",
                w=what,
            )
            + " "
        )
    for attempt in range(2):
        shown = _spoken_digits(call)
        call.user(lead.strip() + " {d}", exact=True, d=shown)
        call.number = shown
        call.agent(
            "(got it|thanks|thank you|okay|so that's|i have|let me repeat|great)(,|) {d}.( is "
            "that (right|correct)?| correct?|)|(that's|i have|you said) {d}(, right|, "
            "correct|)?",
            shown,
            kind="fact",
            d=shown,
        )
        if attempt == 0 and rng.random() < 0.25:
            lead = (
                expand(rng, "no, it's|no|sorry, it's|no that's wrong, it's|not quite, it's") + " "
            )
            continue
        break
    if rng.random() < 0.5:
        call.user("yes|yes|correct|right|that's (it|right|correct)|yep|yeah|exactly")
        call.agent(
            "(great|thank you|perfect|thanks)(,|.) (you're all set|i've noted that|(is there "
            "|)anything else(| i can do)?|how else can i help?|what else can i do for you?)"
        )


def _spoken_digits(call: Call) -> str:
    rng = call.rng
    n_digits = rng.choice((3, 4, 5, 6, 7, 7, 7, 7, 8, 9, 10, 10))
    text = "".join(rng.choice("0123456789") for _ in range(n_digits))
    if call.style == "written" and rng.random() < 0.7:
        return text if n_digits < 7 or rng.random() < 0.5 else f"{text[:3]} {text[3:]}"
    return digit_words(text, rng)


def recall_number(call: Call) -> None:
    """Ask for the number again."""
    if not call.number:
        return digits(call)
    call.user(
        "(what number do you have|can you read (my|the) number back|what was (my|the) number|"
        "which number did you (write|take) down|repeat (my|the) number)( please|)"
    )
    call.agent(
        "(i have|it's|that's|your number is|sure,) {d}.", call.number, kind="fact", d=call.number
    )
    return None
