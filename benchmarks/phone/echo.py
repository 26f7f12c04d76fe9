"""A line that gives back what was played: how often the agent takes that for a caller."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.harness import Bar
from benchmarks.phone.lines import call, serving
from clients.call.script import DEFAULT_CAST, load_call
from clients.progress import progress_bar

DELAYS_MS = (60.0, 120.0, 180.0, 250.0)


class EchoPart:
    """As `Part`. One call for each delay, and as many more as the turns want."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, dict[str, Any]]] = []

    async def measure(self, chosen: Namespace) -> None:
        script = load_call()
        voices = script.casts[DEFAULT_CAST]
        n_calls = max(len(DELAYS_MS), -(-chosen.turns // len(script.turns)))
        async with serving() as (server, _):
            with progress_bar("echo: calls", n_calls) as progress:
                for number in range(n_calls):
                    delay_ms, voice = DELAYS_MS[number % 4], voices[number % len(voices)]
                    address, seed = f"127.0.0.1:{server.port}", chosen.seed + number
                    told = await call(address, voice, seed, "twilio", delay_ms)
                    self._calls.append((delay_ms, told))
                    progress(number + 1)

    def figures(self) -> dict[str, Any]:
        if not self._calls:
            return {}
        turns = [turn for _, told in self._calls for turn in told["turns"]]
        return {
            "turns": len(turns),
            "answered": sum(turn["answered"] for turn in turns),
            "interrupted_itself": sum(told["interrupted_itself"] for _, told in self._calls),
            "by_delay_ms": [(ms, told["interrupted_itself"]) for ms, told in self._calls],
        }

    def bars(self) -> Sequence[Bar]:
        figures = self.figures()
        unanswered = figures["turns"] - figures["answered"]
        return [
            Bar("self-interruptions over an echo", figures["interrupted_itself"], 0, ""),
            Bar("unanswered over an echo", unanswered, 0, ""),
        ]

    def show(self) -> None:
        figures = self.figures()
        print(
            f"\necho: {figures['turns']} turns, {figures['answered']} answered, the agent "
            f"interrupted itself {figures['interrupted_itself']} times {figures['by_delay_ms']}"
        )
