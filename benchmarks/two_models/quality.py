"""How good a cascade's answers are beside its large model's, judged by rule.

A hundred questions to businesses that no model has seen, and the scenarios of agents that ship and
of `benchmarks/shop`, all typed, at one server. The embedded agent is the small model, and
Qwen2.5-Coder-1.5B in int4 the large one (`python -m tests.real_weights.fetch`). Each model is asked
alone, without `quote`; then the cascade is, as it is served.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import RESULTS, Bar, percent
from benchmarks.soak.processes import metrics_of
from benchmarks.strangers import read_strangers
from clients.connection import RealtimeConnection, own_key
from clients.errors import ClientError, ConnectionFailed
from clients.evaluate.arguments import EFFORTS
from clients.evaluate.outcome import Played, failures
from clients.evaluate.scenario import Scenario, ScenarioTurn, load_scenarios
from clients.evaluate.typed_caller import play_typed
from clients.server_process import ServerProcess, running_server
from engine.recipes.conversations.plain_questions import Question
from engine.recipes.measuring.plain_answers import Answer
from tests.real_weights.fetch import folder_of
from tests.real_weights.packages import QWEN_CODER

AGENTS = Path(__file__).parents[2] / "voiceloop" / "agents"
SHOP = Path(__file__).parents[1] / "shop"
SHIPPED = ("cafe", "dentist", "library", "pizzeria")  # the clinic's needs a service beside it
STRANGER = 'name = "Stranger"\ninstructions = "You answer the telephone of a business."\n'
SERVER = """[limits]
admit_by_load = false
[cascade]
models = ["main", "big"]
[[models]]
name = "big"
model = "{model}"
"""
# The rules of `quote` were written looking at the first four businesses.
N_LOOKED_AT, N_QUESTIONS = 4, 100
READY_S = 600.0
MOST_TRIES, EASED_S = 12, 3.0  # each prompt that was read is read quicker at the next try
LEAST_QUALITY_PERCENT, LEAST_SMALL_PERCENT = 97.0, 60.0
ALONE = "-alone"  # behind the name of an agent that does not quote
# By name: who is asked, and by which agents.
VARIANTS = {
    "small": ("small", ALONE), "large": ("large", ALONE), "small, quoting": ("small", ""),
    "cascade": ("cascade", ""),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """What is played to an agent in one call, behind these words of its; question: its rule."""

    agent: str
    scenario: Scenario
    results: dict[str, Any]
    question: Question | None = None
    instructions: str | None = None
    greeting: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One item as it was played. answered: replies by model and reason. is_of_load: a wait was too
    long, or the load chose.
    """

    agent: str
    name: str
    is_good: bool
    n_turns: int
    answered: dict[str, int]
    said: tuple[str, ...]
    is_of_load: bool = False


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    folder = folder_of(QWEN_CODER)
    if folder is None:
        print("quality: expected Qwen2.5-Coder-1.5B, found no weights: "
              "python -m tests.real_weights.fetch qwen2.5-coder-1.5b", file=sys.stderr)  # fmt: skip
        return
    played = list(items(seed))[:: 20 if is_quick else 1]
    outcomes: dict[str, list[Outcome]] = {name: [] for name in VARIANTS}
    try:
        async with _server(next(folder.glob("*.gguf"))) as server:
            for one in played:  # each to all in turn: what the large model has read it reads once
                for name, (part, alone) in VARIANTS.items():
                    outcomes[name].append(await _unhurried(server, one, part, alone))
    finally:
        n_whole = len(outcomes["cascade"])
        for name, each in outcomes.items():
            found.figures[name] = {
                "right": _right(each[:n_whole]), "of": n_whole,
                "large_percent": _large_percent(each[:n_whole]),
                "answers": [asdict(one) for one in each[:n_whole]],
            }  # fmt: skip
        quality = percent(_right(outcomes["cascade"]), _right(outcomes["large"][:n_whole]))
        small = 100.0 - (_large_percent(outcomes["cascade"]) or 0.0)
        found.bars += [
            Bar("right, of all large", quality, LEAST_QUALITY_PERCENT, "%", at_least=True),
            Bar("turns that cost no large model", small, LEAST_SMALL_PERCENT, "%", at_least=True),
        ]


def items(seed: int) -> Iterator[Item]:
    """The questions, by business, so that a prompt is read once; then the scenarios."""
    asked = [
        (one, question)
        for one in read_strangers()[N_LOOKED_AT:]
        for question in (*one.right, *one.refused)
    ]
    drawn = sorted(random.Random(seed).sample(range(len(asked)), N_QUESTIONS))
    for at in drawn:
        business, question = asked[at]
        scenario = Scenario(f"{business.name}: {question.text}", (ScenarioTurn(question.text),))
        greeting = f"Hello, this is {business.name}. How can I help?"
        yield Item("stranger", scenario, {}, question, business.instructions, greeting)
    for agent in (*SHIPPED, "shop"):
        path = AGENTS / "scenarios" / f"{agent}.toml"
        file = load_scenarios(SHOP / "questions.toml" if agent == "shop" else path)
        for scenario in file.scenarios:
            yield Item(agent, scenario, dict(file.results))


@asynccontextmanager
async def _server(model: Path) -> AsyncIterator[ServerProcess]:
    """All agents twice, as they ship and without `quote`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(AGENTS / "library", folder / "library")
        shutil.copytree(SHOP / "handbook", folder / "handbook")
        texts = {agent: (AGENTS / f"{agent}.toml").read_text() for agent in SHIPPED}
        texts |= {"shop": (SHOP / "agent.toml").read_text(), "stranger": STRANGER}
        for agent, text in texts.items():
            (folder / f"{agent}.toml").write_text(text)
            (folder / f"{agent}{ALONE}.toml").write_text(f'quote = "never"\n{text}')
        config = folder / "server.conf"
        config.write_text(SERVER.format(model=model))
        arguments = ("--preset", "embedded", "--config", str(config), "--agents", name)
        log = RESULTS / "two_models_quality.log"
        async with running_server(arguments, log=log, ready_timeout_s=READY_S) as server:
            yield server


async def _unhurried(server: ServerProcess, item: Item, part: str, alone: str) -> Outcome:
    """Played anew where this machine's load chose the model, ended a reply or refused the call.

    Raises: ClientError: as often as `MOST_TRIES`.
    """
    for is_last in [False] * (MOST_TRIES - 1) + [True]:
        try:
            outcome = await _play(server, item, part, alone)
            if is_last or not outcome.is_of_load:
                return outcome
        except ClientError:
            if is_last:
                raise
        await asyncio.sleep(EASED_S)
    raise AssertionError("the last try returns or raises")


async def _play(server: ServerProcess, item: Item, part: str, alone: str) -> Outcome:
    """Raises: ClientError: the server has gone, or does not answer."""
    before = await _answered(server)
    extras = {"agent": item.agent + alone}
    connection = await RealtimeConnection.open(server.url, key=own_key(server.url), extras=extras)
    session: dict[str, Any] = {"type": "realtime"}
    if (effort := EFFORTS[part]) is not None:
        session["reasoning"] = {"effort": effort}
    if item.instructions is not None:
        session["instructions"] = item.instructions
    await connection.send({"type": "session.update", "session": session})
    if item.greeting:
        said = [{"type": "output_text", "text": item.greeting}]
        message = {"type": "message", "role": "assistant", "content": said}
        await connection.send({"type": "conversation.item.create", "item": message})
    played = await play_typed(connection, item.scenario, item.results)
    answered = await _answered(server) - before
    said_all = tuple(one.answer for one in played.turns)
    is_of_load = bool(played.broken) or any(
        by.endswith((" load", " failed", " link")) for by in answered
    )
    return Outcome(
        item.agent, item.scenario.name, _is_good(item, played), len(played.turns), dict(answered),
        said_all, is_of_load,
    )  # fmt: skip


def _is_good(item: Item, played: Played) -> bool:
    if item.question is None or played.broken:
        return not failures(played)
    (turn,) = played.turns
    return Answer(item.question, turn.answer, tuple(one.name for one in turn.calls)).is_good


async def _answered(server: ServerProcess) -> Counter[str]:
    """How many replies each model has ended, with the reason. Raises: ConnectionFailed."""
    try:
        families = text_string_to_metric_families(await metrics_of(server))
    except OSError as error:
        raise ConnectionFailed(f"expected metrics, found {type(error).__name__}") from error
    return Counter({
        f"{one.labels['model']} {one.labels['reason']}": int(one.value)
        for family in families
        if family.name == "voiceloop_answered_by"
        for one in family.samples
        if one.name.endswith("_total")
    })  # fmt: skip


def _right(outcomes: list[Outcome]) -> int:
    return sum(one.is_good for one in outcomes)


def _large_percent(outcomes: list[Outcome]) -> float | None:
    n_turns = sum(one.n_turns for one in outcomes)
    n_large = sum(
        min(one.n_turns, sum(n for by, n in one.answered.items() if by.startswith("big ")))
        for one in outcomes
    )
    return percent(n_large, n_turns)
