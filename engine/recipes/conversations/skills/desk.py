"""Call moves with tools that need more than the caller said: the agent asks before it calls.

Owns the practice desk: appointments and free times for any kind of place, prices of a table that
may lack the thing, codes that have to be asked for. What a reply says of a result is read from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..lexicon import DRINKS, FIRST_NAMES, MEALS, PASTRIES, SERVICES
from ..open_words import draw
from ..wording import article, clock, expand, join, number_words
from .booking import spoken_day
from .tool_schemas import Tool
from .tools import ToolDesk

_QUESTIONS = {
    "day": "(for |)(which|what) day( would you like| works for you|)|what (day|date) (would you "
    "like|should i book)|when would you like to come",
    "time": "(at |)what time|what time (would you like|works for you|should it be)|which time",
    "name": "(under |)what name|what name (is it|should i put it) under|(can|may) i have your name",
    "people": "(for |)how many people|how many (of you |)will you be",
}
_FORMS = {"day": "{v}", "time": "at {v}", "name": "under {v}", "people": "for {v}"}
_CODELESS = {
    "order": "(where is|what's the status of|how is|can you check|i'm calling about|is there "
    "news of) my order|is my order ready",
    "booking": "(please |i'd like to |i need to |i want to |can you |)cancel my booking",
}
_LEADS = ("Sure. ", "Of course. ", "Okay. ", "Certainly. ", "Sure, {heard}. ", "Okay, {heard}. ")


class PracticeDesk(ToolDesk):
    """A `ToolDesk` whose callers leave things out."""

    def _on(self, day: str) -> str:
        return f"on {day}" if day.split()[0][-3:] == "day" and day[0].isupper() else day

    def _time(self) -> str:
        rng = self._call.rng
        return clock(rng.randint(8, 20), rng.choice((0, 0, 0, 30, 15, 45)), "am")

    def _heard(self, value: str) -> str:
        """A name as the last turn has it: an argument is copied, capitals are the reader's."""
        return value if value in str(self._call.messages[-1]["content"]) else value.lower()

    def _gather(self, request: str, values: dict[str, str]) -> dict[str, str]:
        """Say the request with some of the values; the agent asks for the others one by one."""
        call, rng = self._call, self._call.rng
        n_given = rng.choice((0, 1, 1, 1, 2, len(values)))
        given = rng.sample(list(values), min(n_given, len(values)))
        heard = [self._form(name, values[name]) for name in given]
        call.user(
            "{r} {v}{p}",
            r=expand(rng, request),
            v=" ".join(heard),
            p=rng.choice(("", "", " please")),
        )
        found = {
            name: self._heard(values[name]) if name == "name" else values[name] for name in given
        }
        for name in values:
            if name in found:
                continue
            lead = rng.choice(_LEADS) if heard else rng.choice(_LEADS[:4])
            call.agent(
                "{l}{q}?", l=lead.format(heard=" ".join(heard)), q=expand(rng, _QUESTIONS[name])
            )
            # An answer may hold the next value too.
            rest = [n for n in values if n not in found and n != name]
            said = [name, *(rest[:1] if rng.random() < 0.2 else ())]
            heard = [self._form(n, values[n]) for n in said]
            if len(said) == 1:
                call.user(
                    "{f}|{v}|{v} please|{f} please|let's say {v}|make it {v}",
                    f=heard[0],
                    v=values[name],
                )
            else:
                call.user("{f}( please|)", f=rng.choice((" ", ", ")).join(heard))
            for n in said:
                found[n] = self._heard(values[n]) if n == "name" else values[n]
        return found

    def _form(self, name: str, value: str) -> str:
        return self._on(value) if name == "day" else _FORMS[name].format(v=value)

    def _times(self, tool: Tool) -> None:
        """Free times of a day, which the tool lists; or none."""
        call, rng = self._call, self._call.rng
        day = spoken_day(call)
        call.user(
            "what (do you have|is|have you got) (free|open|available) {d}|(do you have|is there) "
            "(anything|something) (free|open|available|left) {d}|(any|which) (free |)(times|slots) "
            "{d}|when (can|could) i come {d}|what times are (free|open) {d}|what about {d}",
            d=self._on(day),
        )
        times = sorted({rng.randint(8, 19) for _ in range(rng.choice((0, 1, 2, 2, 3)))})
        free = [clock(hour, rng.choice((0, 0, 30)), "am") for hour in times]
        key = rng.choice(("free", "times", "slots", "open"))
        self._use(tool, {"day": day.lower()}, {key: free})
        if not free:
            call.agent(
                "(sorry|i'm sorry), (there is nothing|nothing is) free {d}.( (would|does) another "
                "day work?|)",
                "nothing",
                kind="tool_result",
                d=self._on(day),
            )
            return
        call.agent(
            "(we have|there is|you can have) {t} {d}.( which (time|one) would you like?|)|{d} we "
            "have {t}.( which would you like?|)",
            *free,
            kind="tool_result",
            t=join(free, rng.choice(("and", "or"))),
            d=self._on(day),
        )

    def _appoint(self, tool: Tool) -> None:
        """An appointment of which the caller says a part."""
        call, rng = self._call, self._call.rng
        values = {
            "day": spoken_day(call),
            "time": self._time(),
            "name": draw(rng, FIRST_NAMES, call.held_out),
        }
        thing = rng.choice(
            (
                "an appointment",
                "a time",
                "a slot",
                "a visit",
                article(rng.choice(list(self._place().items))),
            )
        )
        found = self._gather(
            "(i'd like to|can i|could i|i want to|i need to|please) (book|make|get|schedule) {t}|i "
            "need {t}|can you (book|give) me {t}".replace("{t}", thing),
            values,
        )
        self._confirm(tool, found)

    def _book(self, tool: Tool) -> None:
        """A table of which the caller says a part."""
        if self._call.rng.random() < 0.4:
            return super()._book(tool)
        call, rng = self._call, self._call.rng
        count = rng.randint(2, 9)
        values = {
            "people": rng.choice((number_words(count), str(count))),
            "day": spoken_day(call),
            "time": self._time(),
            "name": draw(rng, FIRST_NAMES, call.held_out),
        }
        found = self._gather(
            "(i'd like to book|can i (book|get|have)|i need|please book|reserve) a table|(i'd like "
            "to|can i) make a (booking|reservation)",
            values,
        )
        self._confirm(tool, found | {"people": count})
        return None

    def _confirm(self, tool: Tool, values: Mapping[str, object]) -> None:
        """Call the tool and say what came back, details included."""
        call, rng = self._call, self._call.rng
        code = "".join(rng.choice("ABCDEFGHKLMNPRSTVXZ23456789") for _ in range(rng.randint(3, 5)))
        result = rng.choice(
            (
                {"status": "booked", "code": code},
                {"confirmation": code},
                {"ok": True, "booking": code},
                {"status": "confirmed", "reference": code},
            )
        )
        day, shown = str(values["day"]), " ".join(code)
        self._use(tool, dict(values) | {"day": day.lower()}, result)
        call.agent(
            "(you're all set|it's booked|done), {n}, {d} at {t}. your (code|booking code) is {c}.|"
            "(you're booked|it's booked) (for |){d} at {t}. (the|your) code is {c}.",
            shown,
            str(values["time"]),
            kind="tool_result",
            n=str(values["name"]),
            d=self._on(day),
            t=str(values["time"]),
            c=shown,
        )

    def _quote(self, tool: Tool) -> None:
        """A price from a table; things of the menu have one, others do not."""
        call, rng, place = self._call, self._call.rng, self._place()
        is_known = rng.random() < 0.65
        lists = DRINKS + PASTRIES + MEALS if place.sells_food else SERVICES
        item = rng.choice(list(place.items)) if is_known else draw(rng, lists, call.held_out)
        is_known = item in place.items
        call.user(
            "how much is (the|a) {i}|what does (the|a) {i} cost|what's the price of (the|a) {i}|"
            "and (the|a) {i}|how much for (the|a) {i}|what about the {i}",
            i=item,
        )
        if not is_known:
            error = rng.choice(("not on the menu", "not found", "unknown item", "no such item"))
            self._use(tool, {"item": item}, {"error": error})
            call.agent(
                "(sorry|i'm sorry), we don't have (a|the|any) {i}.|(sorry|i'm sorry), the {i} is "
                "not on the menu.",
                item,
                kind="tool_result",
                i=item,
            )
            return
        cost = f"${rng.randint(2, 40)}.{rng.choice(('00', '25', '50', '75', '20', '90'))}"
        self._use(tool, {"item": item}, rng.choice(({"price": cost}, {"cost": cost})))
        call.agent("(the|our) {i} (is|costs) {p}.", cost, kind="tool_result", i=item, p=cost)

    def _say_code(self, thing: str, template: str, code: str) -> None:
        """Half of the callers leave the number out: the agent asks, the next turn brings it."""
        call = self._call
        if call.rng.random() < 0.5:
            return super()._say_code(thing, template, code)
        call.user(_CODELESS[thing])
        call.agent(
            "(sure|of course|okay|certainly)(,|.) (what('s| is)|(can|may) i have) (your|the) "
            "({t} number|number|{t} code)?",
            t=thing,
        )
        call.user("{c}|it's {c}|(the number is|it is|number) {c}", c=" ".join(code))
        return None
