"""Call moves with tools: random schemas, calls with arguments from the turn, replies from results.

Tool names, argument names, their order and the shape of results vary from call to call, so that
the schema in the prompt has to be read.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ..business import Business
from ..call import Call
from ..lexicon import FIRST_NAMES, entries
from ..open_words import draw
from ..wording import DAYS, clock, counted, expand, join, number_words
from .booking import spoken_day
from .tool_schemas import ARGUMENTS, Tool, random_tool

_STATES = entries("order_states")
_FILLERS = (
    "",
    "",
    "",
    "Let me check.",
    "One moment.",
    "Let me look that up.",
    "Just a second.",
    "Sure, one moment.",
)


class ToolDesk:
    """The tools of one call and the moves that use them."""

    def __init__(self, call: Call, kinds: Sequence[str] = ()) -> None:
        self._call = call
        rng = call.rng
        kinds = kinds or rng.sample(list(ARGUMENTS), rng.choice((1, 2, 2, 3, 4)))
        self.tools = {kind: random_tool(rng, kind) for kind in kinds}
        call.tools = [tool.schema for tool in self.tools.values()]

    def act(self) -> None:
        """One exchange that needs a tool."""
        kind = self._call.rng.choice(list(self.tools))
        getattr(self, f"_{kind}")(self.tools[kind])

    def _use(self, tool: Tool, values: dict[str, Any], result: Any) -> None:
        arguments = {name: values[argument] for argument, name in tool.names.items()}
        self._call.call_tool(tool.name, arguments, result, self._call.rng.choice(_FILLERS))

    def _result(self, **fields: Any) -> dict[str, Any]:
        """A result object; an extra field may stand in it."""
        if self._call.rng.random() < 0.2:
            fields["ok"] = True
        return fields

    def _say_code(self, thing: str, template: str, code: str) -> None:
        """The caller names an order or a booking by its code."""
        self._call.user(template, c=" ".join(code))

    def _hours(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        day = rng.choice((*DAYS, "today", "tomorrow"))
        on = day if day.startswith("to") else f"on {day}"
        call.user(
            "(are you open|when are you open|what are your hours|what time do you open|how late "
            "are you open|when do you close|do you open) {d}",
            d=on,
        )
        opens, closes = (
            clock(rng.randint(5, 11), rng.choice((0, 0, 30)), "am"),
            clock(rng.randint(13, 23), rng.choice((0, 0, 30, 45)), "am"),
        )
        if rng.random() < 0.2:
            self._use(tool, {"day": day.lower()}, self._result(open=False))
            call.agent("(sorry|i'm sorry), we're closed {d}.", "closed", kind="tool_result", d=on)
            return
        result: Any = rng.choice(
            (
                {"open": opens, "close": closes},
                {"opens": opens, "closes": closes},
                {"from": opens, "to": closes},
                {"hours": f"{opens} to {closes}"},
            )
        )
        self._use(tool, {"day": day.lower()}, result)
        call.agent(
            "(we're|{d} we're) open from {o} to {c}.",
            opens,
            closes,
            kind="tool_result",
            o=opens,
            c=closes,
            d=on,
        )

    def _total(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        place = self._place()
        names = rng.sample(list(place.items), min(len(place.items), rng.choice((1, 2, 2, 3))))
        counts = [rng.choice((1, 1, 1, 2, 3)) for _ in names]
        listed = join([counted(c, n, "a") for c, n in zip(counts, names, strict=True)])
        call.user(
            "how much (is|are|for|would be) {l}|what's the total for {l}|what do {l} cost( "
            "together|)|(can you |)add up {l}",
            l=listed,
        )
        flat = [name for count, name in zip(counts, names, strict=True) for _ in range(count)]
        total = f"${rng.randint(3, 60)}.{rng.choice(('00', '25', '50', '75', '40', '10', '95'))}"
        self._use(
            tool,
            {"items": flat},
            rng.choice(
                (
                    {"total": total},
                    {"sum": total},
                    {"price": total},
                    {"total": total, "items": len(flat)},
                )
            ),
        )
        call.agent(
            "(that's|that comes to|the total is|that will be|it's) {t}( in total|"
            " altogether|)(.|. anything else?)",
            total,
            kind="tool_result",
            t=total,
        )

    def _slot(self) -> tuple[dict[str, Any], str]:
        """Day, time and people of a request: argument values, and how they are spoken."""
        call, rng = self._call, self._call.rng
        day = spoken_day(call)
        hour, minute = rng.randint(1, 11), rng.choice((0, 0, 0, 30, 15, 45))
        time = clock(hour + 12 if rng.random() < 0.85 else hour, minute, "am")
        people = rng.randint(2, 12)
        on = f"on {day}" if day.split()[0][-3:] == "day" and day[0].isupper() else day
        spoken = [f"for {number_words(people)}" + rng.choice(("", " people")), on, f"at {time}"]
        rng.shuffle(spoken)
        return {"day": day.lower(), "time": time, "people": people}, " ".join(spoken)

    def _available(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        values, spoken = self._slot()
        call.user(
            "(do you have|is there|have you got) (a table|anything|space|room)( free|) {s}|(can "
            "|could )we come {s}|i'd like to know if there's (a table|space) {s}",
            s=spoken,
        )
        if rng.random() < 0.6:
            self._use(
                tool,
                values,
                rng.choice(({"available": True}, {"free": True}, {"status": "available"})),
            )
            call.agent(
                "yes, (we have (space|a table)|that's (free|available)|there is space) at {t}. "
                "(shall i|should i|would you like me to) book it?",
                "yes",
                kind="tool_result",
                t=values["time"],
            )
            return
        other = clock(rng.randint(13, 22), rng.choice((0, 30, 15, 45)), "am")
        self._use(
            tool,
            values,
            rng.choice(
                (
                    {"available": False, "next": other},
                    {"free": False, "next_free": other},
                    {"status": "full", "alternative": other},
                )
            ),
        )
        call.agent(
            "(sorry|i'm sorry), (that's taken|we're full then|that's not available), (but|how "
            "about) {o}( is free|)(.|?)|(sorry|i'm sorry), we're full then. would {o} work?",
            other,
            kind="tool_result",
            o=other,
        )

    def _book(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        values, spoken = self._slot()
        name = draw(rng, FIRST_NAMES, call.held_out)
        if rng.random() < 0.5:
            call.user(
                "(i'd like to book|can i book|please book|reserve|i need) a table {s}( please|)|"
                "(i'd like to|can i) make a (booking|reservation) {s}",
                s=spoken,
            )
            call.agent(
                "(sure|of course|okay|certainly)(,|.) (under what name|what name (is it|should "
                "i put it) under|(can|may) i have your name)?"
            )
            call.user("{n}|it's {n}|my name is {n}|{n} please|under {n}|i'm {n}", n=name)
        else:
            call.user(
                "(i'd like to book|can i book|please book|reserve|i need) a table {s} (under|for|"
                "under the name) {n}",
                s=spoken,
                n=name,
            )
        code = "".join(rng.choice("ABCDEFGHKLMNPRSTVXZ23456789") for _ in range(rng.randint(3, 5)))
        # As it was heard: an argument is copied, capitals are the reader's business.
        heard = str(call.messages[-1]["content"])
        values["name"] = name if name in heard else name.lower()
        if rng.random() < 0.85:
            self._use(
                tool,
                values,
                rng.choice(
                    (
                        {"status": "confirmed", "code": code},
                        {"confirmation": code},
                        {"ok": True, "booking": code},
                        {"result": "booked", "code": code},
                    )
                ),
            )
            call.agent(
                "(you're all set|it's booked|your table is booked|done)(,|) {n}. (your|the) "
                "(code|confirmation code|booking code) is {c}.",
                " ".join(code),
                kind="tool_result",
                n=name,
                c=" ".join(code),
            )
            return
        self._use(
            tool,
            values,
            rng.choice(({"error": "fully booked"}, {"ok": False, "error": "no free table"})),
        )
        call.agent(
            "(sorry|i'm sorry), we're fully booked then. (would|does) another time work?",
            "booked",
            kind="tool_result",
        )

    def _status(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        code = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 6)))
        self._say_code(
            "order",
            "(where is|what's the status of|can you check|what about|how is) (my |)order "
            "(number |){c}|(can you |)(track|check) order {c}",
            code,
        )
        state = rng.choice(_STATES)
        minutes = rng.randint(2, 59)
        with_time = rng.random() < 0.4
        self._use(
            tool, {"code": code}, {"status": state} | ({"minutes": minutes} if with_time else {})
        )
        call.agent(
            "(your order is|it's) {s}" + (", about {m} minutes." if with_time else "."),
            state,
            kind="tool_result",
            s=state,
            m=str(minutes),
        )

    def _price(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        item = rng.choice(list(self._place().items))
        call.user(
            "how much is (the|a) {i}|what does (the|a) {i} cost|what's the price of (the|a) {i}",
            i=item,
        )
        cost = f"${rng.randint(2, 40)}.{rng.choice(('00', '25', '50', '75', '20', '90'))}"
        self._use(
            tool,
            {"item": item},
            rng.choice(({"price": cost}, {"cost": cost}, {"item": item, "price": cost})),
        )
        call.agent("(the|our) {i} (is|costs) {p}.", cost, kind="tool_result", i=item, p=cost)

    def _cancel(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        code = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 6)))
        self._say_code(
            "booking",
            "(please |can you |i'd like to |i need to |)cancel (my |)booking (number |){c}",
            code,
        )
        if rng.random() < 0.75:
            self._use(
                tool,
                {"code": code},
                rng.choice(({"cancelled": True}, {"status": "cancelled"}, {"ok": True})),
            )
            call.agent(
                "(done|okay|all right), your booking (is|has been) cancelled.",
                "cancelled",
                kind="tool_result",
            )
            return
        self._use(
            tool,
            {"code": code},
            rng.choice(({"error": "not found"}, {"ok": False, "error": "unknown"})),
        )
        call.agent(
            "(sorry|i'm sorry), i (can't|couldn't) find that booking.( could you repeat the "
            "number?|)",
            "find",
            kind="tool_result",
        )

    def _transfer(self, tool: Tool) -> None:
        call, rng = self._call, self._call.rng
        reason = rng.choice(
            ("complaint", "refund", "billing", "lost item", "allergy", "job", "event")
        )
        call.user(
            "(can|could|may) i (speak|talk) to (a person|someone|a human|the manager) about (a|"
            "an|my) {r}|i need to talk to (someone|a person) about (a|my) {r}",
            r=reason,
        )
        self._use(tool, {"reason": reason}, rng.choice(({"status": "connecting"}, {"ok": True})))
        call.agent(
            "(okay|sure|of course), i'm connecting you (now|to a colleague).",
            "connecting",
            kind="tool_result",
        )

    def _place(self) -> Business:
        assert self._call.place is not None
        return self._call.place


def tool_instruction(rng: random.Random) -> str:
    """A line of the prompt that mentions the tools; often there is none."""
    return rng.choice(
        (
            "",
            "",
            expand(rng, "use (the|your) tools( when needed| to answer|)."),
            "Look things up with the tools.",
        )
    )
