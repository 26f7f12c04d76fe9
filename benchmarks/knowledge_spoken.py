"""Retrieval in a served call: ``python -m benchmarks.knowledge_spoken [--turns 20]``.

Questions about the 300 pages of `benchmarks.knowledge`, of the products that nothing was chosen on,
are spoken by hibari into ``voiceloop serve`` in real time. Of each answered turn the timeline tells
whether the search was over when the turn was (hidden) and what it added to the gap; and how many
tokens of the caller's words, read while they were said, had to be read again with what was found
behind them.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.calls.make_call import HibariCaller
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from benchmarks.knowledge.corpus import PRODUCTS, Question, pages, questions
from clients.call.open_call import CallOptions
from clients.call.script import ScriptedTurn, Utterance, utterance_of
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.server_process import running_server

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}
CALLER = HibariCaller(1.0, 1.0)
TURNS_A_CALL = 5  # a longer one would slide the little model's window
LEAST_HIDDEN_PERCENT = 90.0
AGENT = """
name = "June"
greeting = "Hi, this is June. What would you like to know?"
instructions = '''
You are June, the friendly voice assistant of a shop. \\
You answer questions from the notes behind the caller's words. \\
Answer in one short sentence.'''

[[knowledge]]
source = "pages"
"""


def chosen(n_turns: int) -> list[Question]:
    """Questions of every other product, spread over products and subjects."""
    held_out = set(PRODUCTS[1::2])
    asked = [question for question in questions() if question.product in held_out]
    step = max(1, len(asked) // n_turns)
    return asked[::step][:n_turns]


def spoken(question: Question, number: int, scratch: Path) -> Utterance:
    text = f"{question.text.capitalize()}?"
    recording, _ = CALLER.speak(text, scratch)
    turn = ScriptedTurn(f"q{number}", text, "", "agent", 400.0, 0.0, ())
    return utterance_of(turn, recording.at_rate(RATE_HZ))


async def measure(asked: Sequence[Question], seed: int, found: list[dict[str, Any]]) -> None:
    """Add the timelines of the answers. Raises: ClientError: the server did not start."""
    async with AsyncExitStack() as running:
        scratch = Path(running.enter_context(tempfile.TemporaryDirectory()))
        for document in pages(seed):
            path = scratch / "pages" / document.path
            path.parent.mkdir(parents=True, exist_ok=True)
            sections = (f"# {heading}\n\n{text}" for heading, text in document.sections)
            path.write_text("\n\n".join(sections), encoding="utf-8")
        agent = scratch / "agent.toml"
        agent.write_text(AGENT, encoding="utf-8")
        arguments = ("--preset", "embedded", "--agent", str(agent))
        log = RESULTS / "knowledge_spoken.log"
        server = await running.enter_async_context(running_server(arguments, log=log))
        said = [spoken(question, number, scratch) for number, question in enumerate(asked)]
        for first in range(0, len(said), TURNS_A_CALL):
            connection = await RealtimeConnection.open(
                server.url, key=own_key(server.url), extras=EXTRAS
            )
            turns = tuple(said[first : first + TURNS_A_CALL])
            call = SimulatedCall(
                connection, turns, voice="hibari", options=CallOptions(seed=seed + first)
            )
            await call.run()
            found += [
                dict(reply.timeline)
                for reply in call.record.replies
                if reply.timeline is not None and "retrieval" in reply.timeline
            ]


def figures(timelines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the turns that were answered with what was searched for them."""
    fates = Counter(timeline["retrieval"]["fate"] for timeline in timelines)
    told = [timeline for timeline in timelines if timeline["retrieval"]["n_passages"]]
    added_ms = [
        stage["ms"]
        for timeline in timelines
        for stage in timeline["stages"]
        if stage["name"] == "retrieval"
    ]
    ahead = [timeline["anticipation"] for timeline in told]
    # A turn that went without because the search was late waited for nothing, and is no success.
    n_hidden = sum(timeline["retrieval"]["fate"] == "hidden" for timeline in timelines)
    return {
        "n_turns": len(timelines),
        "n_with_passages": len(told),
        "fates": dict(fates),
        "hidden_percent": round(100.0 * n_hidden / max(1, len(timelines)), 1),
        "added_ms_most": round(max(added_ms, default=0.0), 1),
        "n_turn_tokens": sum(one["n_turn_tokens"] for one in ahead),
        "n_read_again": sum(one["n_turn_tokens"] - one["n_turn_resident"] for one in ahead),
    }


def main() -> int:
    command = Benchmark(
        "knowledge_spoken", "Retrieval in a served call.", seed="the pages and the room noise"
    )
    command.count("--turns", 20, "questions that are asked")
    options = command.parse()
    timelines: list[dict[str, Any]] = []
    command.measure(measure(chosen(options.turns), options.seed, timelines))
    if command.partial is not None and not timelines:
        return command.without_results()
    found = figures(timelines)
    for name, value in found.items():
        print(f"{name:<16} {value}")
    hidden = found["hidden_percent"] if found["n_turns"] else None
    bars = [
        Bar("turns with passages, none added", hidden, LEAST_HIDDEN_PERCENT, "%", at_least=True),
        Bar("tokens of the words read again", float(found["n_read_again"]), 0.0, ""),
    ]
    return command.finish({"turns": options.turns}, bars, figures=found)


if __name__ == "__main__":
    sys.exit(run(main))
