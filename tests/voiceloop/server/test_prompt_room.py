"""A server starts only where its agent leaves a caller room in what the language model takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes import instant_backends
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.server.process import check_prompt_room

LONG = AgentConfig(name="Ava", instructions="Be brief. " * 100)  # 200 words
LISTS = AgentConfig(name="Ava", tools=(AgentTool("order", "takes an order " * 70),))


def counting() -> Backends:
    """A language model whose tokens are words."""
    return replace(instant_backends(), count_tokens=lambda: lambda text: len(text.split()))


@pytest.mark.parametrize("agent", [LONG, LISTS])
def test_instructions_or_tools_that_fill_the_prompt_are_refused(agent: AgentConfig) -> None:
    check_prompt_room(agent, Config(context_tokens=300), counting())
    told = "^agent Ava: expected instructions and tools that fit the model's 168 tokens, found"
    with pytest.raises(ConfigError, match=f"{told} about 2.*raise context_tokens"):
        check_prompt_room(agent, Config(context_tokens=200), counting())


def test_where_nobody_counts_only_what_is_surely_too_much_is_refused() -> None:
    check_prompt_room(LONG, Config(context_tokens=260), instant_backends())  # 1000 letters
    with pytest.raises(ConfigError):
        check_prompt_room(LONG, Config(context_tokens=200), instant_backends())
