"""People over G.711: whether they are answered soon and let finish, and their numbers heard."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.phone.callers import (
    N_PEOPLE,
    NUMBER,
    PEOPLE,
    TURNS_OF_A_CALL,
    digits_of,
    said_numbers,
)
from benchmarks.phone.lines import call, line_figures, line_text, serving
from clients.progress import progress_bar

AT_ONCE = 3  # who say a number: two cores carry eight calls
GAP_MS = (260.0, 1000.0)  # p50, p95
HARD_CUTS = 3.0  # percent
NUMBERS_RIGHT = 90.0  # percent
AGENT = """name = "Numbers"
instructions = "You take telephone numbers."
greeting = "What is your phone number?"

[[slots]]
asked = "phone number"
kind = "phone"
name = "phone"
read_back = "That is {value}. Is that right?"
"""


class PeoplePart:
    """As `Part`. numbers: what was said, heard, and read back by the agent."""

    def __init__(self) -> None:
        self._turns: list[dict[str, Any]] = []
        self._numbers: list[dict[str, str]] = []

    async def measure(self, chosen: Namespace) -> None:
        async with serving() as (server, port):
            n_calls = -(-N_PEOPLE // TURNS_OF_A_CALL)
            with progress_bar("people: calls", n_calls) as progress:
                for number in range(n_calls):
                    address, voice = f"127.0.0.1:{server.port}", f"{PEOPLE}:{number}"
                    told = await call(address, voice, number, "sip", sip_port=port)
                    self._turns += told["turns"]
                    progress(number + 1)
        agent = RESULTS / "phone-numbers.toml"
        agent.write_text(AGENT)
        async with serving("--agent", str(agent)) as (server, port):
            await self._take_numbers(f"127.0.0.1:{server.port}", port)

    async def _take_numbers(self, address: str, port: int) -> None:
        values = [value for _, value in said_numbers()]
        places = asyncio.Semaphore(AT_ONCE)
        with progress_bar("people: numbers", len(values)) as progress:

            async def one(index: int, value: str) -> None:
                async with places:
                    told = await call(address, f"{NUMBER}:{index}", index, "sip", sip_port=port)
                    (turn,) = told["turns"]
                    read_back = digits_of(turn["answer"] or "")
                    heard = turn["heard"] or ""
                    self._numbers.append({"said": value, "heard": heard, "read_back": read_back})
                    progress(len(self._numbers))

            async with asyncio.TaskGroup() as group:
                for index, value in enumerate(values):
                    group.create_task(one(index, value))

    def figures(self) -> dict[str, Any]:
        if not self._turns:
            return {}
        n_right = sum(one["read_back"] == one["said"] for one in self._numbers)
        return {
            "people": line_figures(self._turns),
            "numbers": {"n": len(self._numbers), "right": n_right},
            "said": self._numbers,
            "turns": self._turns,
        }

    def bars(self) -> Sequence[Bar]:
        figures = self.figures()
        people, numbers = figures["people"], figures["numbers"]
        gap, n = people["gap_ms"], people["gap_ms"]["n"]
        right = round(100.0 * numbers["right"] / numbers["n"], 1) if numbers["n"] else None
        return [
            Bar("people by G.711: unanswered", people["unanswered"], 0, ""),
            Bar("people by G.711: gap p50", gap["p50"], GAP_MS[0], n=n),
            Bar("people by G.711: gap p95", gap["p95"], GAP_MS[1], n=n),
            Bar("people by G.711: hard cuts", people["hard_cuts_percent"], HARD_CUTS, "%"),
            Bar("numbers of ten digits right", right, NUMBERS_RIGHT, "%", True, numbers["n"]),
        ]

    def show(self) -> None:
        figures = self.figures()
        print(line_text("people", figures["people"]))
        for one in self._numbers:
            if one["read_back"] != one["said"]:
                print(f"  said {one['said']}, heard {one['heard']!r}, read back {one['read_back']}")
        print(f"  {figures['numbers']['right']} of {figures['numbers']['n']} numbers right")
