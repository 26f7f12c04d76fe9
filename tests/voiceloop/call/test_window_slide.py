"""The window of a long call moves on while nobody speaks, with what must not be lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, instant_backends
from voiceloop.agent import AgentConfig
from voiceloop.backends import ChatMessage
from voiceloop.config import Ahead, AheadPart, Config

pytestmark = pytest.mark.virtual_time

N_CONTEXT = 1000
LONG = (
    "which I bought at the market by the river last spring, together with a red kettle, two old "
    "chairs, a map of the harbour and a lamp that has never worked since"
)
TURNS = ["Hi, my name is Maria Lopez.", *(f"I have thing number {n}, {LONG}" for n in range(40))]


def answer(prompt: tuple[ChatMessage, ...]) -> str:
    return f"I see. {LONG}"


async def call(
    model: FakeLanguageModel, *, n_turns: int = 12, off: tuple[AheadPart, ...] = ()
) -> list[dict[str, Any]]:
    """The timelines of a call that is typed, a second of silence behind each answer."""
    now = asyncio.get_running_loop().time
    agent = AgentConfig(instructions="Be kind.")
    config = Config(context_tokens=N_CONTEXT, anticipation=Ahead(off))
    counted = instant_backends(language_model=model)
    backends = replace(counted, count_tokens=lambda: lambda text: len(text) // 3)
    async with Caller(now, backends, agent, config) as caller:
        caller.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
        for n, text in enumerate(TURNS[:n_turns]):
            caller.send("conversation.item.create", item=typed(text))
            caller.send("response.create")
            await caller.wait_for("response.done", count=n + 1)
            await asyncio.sleep(1.0)
    return [one.event["timeline"] for one in caller.of("voiceloop.timeline")]


def slides(timelines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [line["window"] for line in timelines if "window" in line]


async def test_the_window_slides_in_silence_and_the_model_reads_it_before_the_turn() -> None:
    model = FakeLanguageModel(answer)
    slid = slides(await call(model))
    assert slid and {one["slid"] for one in slid} == {"in silence"}
    assert slid[-1]["n_facts"] > 1
    told = [prompt for prompt in model.prompts if "Maria Lopez" in prompt[1].behind]
    assert told and told[-1] == model.prompts[-1]
    # The branch that the reply after a slide was made on had been opened, and read, in silence.
    first = told[0]
    opened = next(b for b in model.branches if tuple(b.messages[: len(first)]) == first)
    assert opened.staged == [""]


async def test_without_slides_ahead_the_window_moves_in_a_turn_as_it_is_over_full() -> None:
    slid = slides(await call(FakeLanguageModel(answer), off=("slide",)))
    assert slid and {one["slid"] for one in slid} == {"in the turn"}
