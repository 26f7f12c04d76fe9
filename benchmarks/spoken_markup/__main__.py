"""Is markup of a call ever spoken: ``python -m benchmarks.spoken_markup --check``.

Every agent that ships is served, one after the other, with the embedded model, and answers typed
turns aloud: the plain questions to all three businesses and ways to ask how to pay, as they are
written and as a small recognizer mishears them, mixed into calls of eight turns. Most of them are
another business's questions, which is where a small model breaks. What was said is judged by
`judge`, apart from the server's own rule; how often that rule had to act, the server's log tells.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.calls.typed_call import typed_call
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.spoken_markup.judge import holds_markup, is_stuck
from clients.errors import ClientError
from clients.server_process import running_server
from engine.recipes.conversations.plain_questions import BUSINESSES, read_questions
from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from voiceloop.agent_file import shipped_agent, shipped_agents

# What a newcomer asked when the agent of that day said "cash cash cash ... </tool_call>".
HOW_TO_PAY = (
    "Can I pay by card?", "how can I pay", "Do you take cards?", "can i pay cash",
    "Do you take Apple Pay?", "what about paying by phone", "Is it cash only?",
)  # fmt: skip
TURNS_A_CALL = 8  # more would fill the embedded model's window with other businesses' questions
CALLS_AT_ONCE = 8
MISHEARD = 0.2  # of the words
BROKE_OFF = "a reply broke off"  # the server's line where its own rule ended a reply


@dataclass(frozen=True, slots=True)
class Heard:
    """One spoken reply, and what of it nobody should hear."""

    agent: str
    asked: str
    said: str
    markup: bool
    stuck: bool


@dataclass(slots=True)
class Found:
    heard: list[Heard] = field(default_factory=list)
    n_broke_off: int = 0  # replies that the server ended by its own rule


def turns(n_turns: int, seed: int) -> list[str]:
    """What is typed, each turn written, then misheard, in an order of its own."""
    rng = random.Random(seed)
    written = [turn.text for business in BUSINESSES for turn in read_questions(business).turns]
    written += HOW_TO_PAY
    noise = RecognizerNoise([word for text in written for word in text.lower().split()])
    found: list[str] = []
    while len(found) < n_turns:
        again = [*written, *(noise.noisy(text, rng, MISHEARD) for text in written)]
        rng.shuffle(again)
        found += again
    return found[:n_turns]


def shares(n_turns: int, agents: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """How many turns each agent gets, as even as it goes."""
    for index, agent in enumerate(agents):
        yield agent, n_turns // len(agents) + (index < n_turns % len(agents))


async def talk_to(name: str, typed: list[str], found: Found, log: Path) -> None:
    """Raises: ClientError: the server did not start, or a call broke off."""
    agent = shipped_agent(name)
    tools = [tool.name for tool in agent.tools]
    room = asyncio.Semaphore(CALLS_AT_ONCE)

    async def call(url: str, asked: list[str]) -> None:
        async with room, typed_call(url, agent.greeting or "Hello.", speaks=True) as open_call:
            for text in asked:
                said = (await open_call.turn(text)).said
                markup, stuck = holds_markup(said, tools), is_stuck(said)
                found.heard.append(Heard(name, text, said, markup, stuck))

    async with running_server(("--preset", "embedded", "--agent", name), log=log) as server:
        try:
            async with asyncio.TaskGroup() as calls:
                for first in range(0, len(typed), TURNS_A_CALL):
                    calls.create_task(call(server.url, typed[first : first + TURNS_A_CALL]))
        except* ClientError as broken:
            raise broken.exceptions[0] from None
    found.n_broke_off += n_broke_off(log)


def n_broke_off(log: Path) -> int:
    return log.read_text(encoding="utf-8").count(BROKE_OFF)


async def measure(n_turns: int, seed: int, found: Found) -> None:
    typed = turns(n_turns, seed)
    for name, n_asked in shares(n_turns, shipped_agents()):
        asked, typed = typed[:n_asked], typed[n_asked:]
        await talk_to(name, asked, found, RESULTS / "spoken_markup.log")
        print(f"{name}: {n_asked} turns", flush=True)


def bars_of(found: Found) -> list[Bar]:
    return [
        Bar("replies with markup spoken", float(sum(o.markup for o in found.heard)), 0.0, ""),
        Bar("replies that say the same on and on", float(sum(o.stuck for o in found.heard)), 0, ""),
        Bar("turns without a word", float(sum(not o.said for o in found.heard)), 0.0, ""),
    ]


def main() -> int:
    command = Benchmark(
        "spoken_markup", "Whether markup of a tool call is ever spoken.",
        seed="the order of the turns and what is misheard",
    )  # fmt: skip
    command.count("--replies", 500, "that are asked for")
    chosen = command.parse()
    found = Found()
    command.measure(measure(chosen.replies, chosen.seed, found))
    if not found.heard:
        return command.without_results()
    for one in found.heard:
        if one.markup or one.stuck or not one.said:
            print(f"{one.agent}: {one.asked}\n    {one.said}")
    print(f"{len(found.heard)} replies; the server ended {found.n_broke_off} by its own rule")
    settings = {"replies": chosen.replies, "agents": list(shipped_agents())}
    replies = [asdict(one) for one in found.heard]
    return command.finish(settings, bars_of(found), replies=replies, n_broke_off=found.n_broke_off)


if __name__ == "__main__":
    sys.exit(run(main))
