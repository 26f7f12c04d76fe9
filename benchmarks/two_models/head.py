"""The route head: whether it knows beforehand which questions the embedded agent gets wrong.

Twelve businesses that no recipe knows are asked as `benchmarks.strangers` asks them, and agents
that ship their plain questions. Each question is staged, as while a caller speaks, which gives what
the head reads. Then it is answered, and judged by its rule.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.strangers import read_strangers
from clients.report.percentiles import percentile
from engine.engine import Engine
from engine.recipes.conversations.plain_questions import BUSINESSES, Question, read_questions
from engine.recipes.measuring.measures import area_under_curve
from engine.recipes.measuring.plain_answers import Answer
from engine.route import ROUTE_FILE
from engine.types import Done, EngineConfig, RouteSigns, SamplingParams, Staged, TextDelta, ToolCall

AGENT = Path(__file__).parents[2] / "engine" / "embedded" / "agent"
HEAD = Path("out") / ROUTE_FILE  # as `engine.recipes.train_route --out` was told
LARGE_SHARE = 0.4  # 60 % stay small
N_COSTS = 500
LEAST_AUC, MOST_COST_MS, LEAST_QUALITY = 0.85, 1.0, 97.0


@dataclass(frozen=True, slots=True)
class Asked:
    """One question. is_right: of the small model's answer, by rule."""

    signs: RouteSigns
    is_right: bool


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    config = EngineConfig(quant="int8", threads=2, ngram_draft=True, route_file=HEAD)
    engine = Engine.load(AGENT, config)
    n_strangers = 1 if is_quick else 4 * n_calls
    asked = [_ask(engine, *each) for each in questions(n_strangers)]
    cost_ms = _cost_ms(engine)
    area = area_under_curve(
        [one.signs.large_rank for one in asked if not one.is_right],
        [one.signs.large_rank for one in asked if one.is_right],
    )
    small = [one for one in asked if one.signs.large_rank < 1 - LARGE_SHARE]
    # The large model of this figure knows every answer: what is wrong is what stayed small.
    quality = 100 * (1 - sum(not one.is_right for one in small) / len(asked))
    found.figures.update({
        "questions": len(asked), "right_alone": sum(one.is_right for one in asked),
        "auc": area, "small_share": len(small) / len(asked), "quality_percent": quality,
        "cost_ms": cost_ms,
    })  # fmt: skip
    found.bars += [
        Bar("route head: AUC on businesses not trained on", area, LEAST_AUC, "", at_least=True),
        Bar("its cost", cost_ms, MOST_COST_MS),
        Bar("right at 60 % small, of all large", quality, LEAST_QUALITY, " %", at_least=True),
    ]


def questions(
    n_strangers: int,
) -> Iterator[tuple[list[dict[str, Any]], Question, list[dict[str, Any]]]]:
    """What stands before each question, the question, and the tools."""
    for one in read_strangers()[:n_strangers]:
        for question in (*one.right, *one.refused):
            yield _opening(one.instructions, f"Hello, this is {one.name}."), question, []
    for known in map(read_questions, BUSINESSES[: 1 if n_strangers == 1 else None]):
        tools = [_schema(tool) for tool in known.agent.get("tools", [])]
        if not known.is_one_call:
            for question in known.turns:
                opening = _opening(known.agent["instructions"], known.agent["greeting"])
                yield opening, question, tools


def _opening(instructions: str, greeting: str) -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": instructions.strip()},
        {"role": "assistant", "content": greeting},
    ]


def _schema(tool: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names}}


def _ask(
    engine: Engine, before: list[dict[str, Any]], question: Question, tools: list[dict[str, Any]]
) -> Asked:
    text, branch = engine.text, engine.branch("asked")
    branch.stage(text.encode_chat(before, tools, open_user=question.text))
    signs = None
    while signs is None:
        signs = next((e.route for e in engine.step() if isinstance(e, Staged)), None)
    messages = [*before, {"role": "user", "content": question.text}]
    offered = json.dumps([tool["function"] for tool in tools]) if tools else None
    prompt = text.encode_chat(messages, tools, add_generation_prompt=True)
    branch.commit(prompt, SamplingParams(72, offered_tools=offered))
    said, called, is_over = "", list[str](), False
    while not is_over:
        for event in engine.step():
            match event:
                case TextDelta(text=more):
                    said += more
                case ToolCall(name=name):
                    called.append(name)
                case Done():
                    is_over = True
    branch.close()
    return Asked(signs, Answer(question, said, tuple(called)).is_good)


def _cost_ms(engine: Engine) -> float:
    head, decoder = engine.runner.decoder.route_head, engine.runner.decoder
    assert head is not None
    state = torch.randn(1, decoder.config.hidden_size)
    costs = []
    for _ in range(N_COSTS):
        began_s = time.perf_counter()
        with torch.inference_mode():
            head(state).tolist()
        costs.append(1000 * (time.perf_counter() - began_s))
    return percentile(costs, 50)
