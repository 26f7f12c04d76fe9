"""What the author approved answers typed words too, and so does the answer to words of danger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clients.connection import typed
from tests.callers import Caller
from tests.fakes import FakeLanguageModel, instant_backends
from voiceloop.agent import AgentConfig, Crisis
from voiceloop.knowledge.answers import ApprovedAnswer

pytestmark = pytest.mark.virtual_time

AGENT = AgentConfig(
    answer=(ApprovedAnswer(("can i bring ... dog",), "Yes, dogs are welcome."),),
    crisis=Crisis(("want to die",), "Please call 988."),
)


async def answer_to(text: str, **asked: Any) -> tuple[str, int]:
    """What is said to these typed words, and how often the model was asked."""
    model = FakeLanguageModel(("I am not sure.",))
    now = asyncio.get_running_loop().time
    async with Caller(now, instant_backends(language_model=model), AGENT) as caller:
        caller.send("conversation.item.create", item=typed(text))
        caller.send("response.create", response={"output_modalities": ["text"], **asked})
        done = await caller.wait_for("response.done")
    [output] = done.event["response"]["output"]
    return output["content"][0]["text"], len(model.prompts)


@pytest.mark.parametrize(
    ("typed", "said", "n_asked"),
    [
        ("Can I bring my dog?", "Yes, dogs are welcome.", 0),
        ("I want to die", "Please call 988.", 0),
        ("Can I bring my bike?", "I am not sure.", 1),
    ],
)
async def test_typed_words_get_the_approved_answer(typed: str, said: str, n_asked: int) -> None:
    assert await answer_to(typed) == (said, n_asked)


async def test_a_client_that_says_how_to_answer_is_answered_by_the_model() -> None:
    said, n_asked = await answer_to("Can I bring my dog?", instructions="Answer in French.")
    assert (said, n_asked) == ("I am not sure.", 1)
