"""Practice calls: dense, checkable, and free of the demo's turns."""

from __future__ import annotations

import random
import re

import pytest

from engine.recipes.conversations.call import Call
from engine.recipes.conversations.calls import holds_held_out
from engine.recipes.conversations.practice import (
    counter_call,
    desk_call,
    facts_call,
    front_desk_call,
)
from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from engine.recipes.conversations.wording import number_words
from engine.recipes.measuring import measures

NOISE = RecognizerNoise(["latte", "ladder", "muffin", "moving"])


QUESTIONS = ("Who was Galileo?",)


def counter(rng: random.Random, noise: RecognizerNoise) -> Call:
    return counter_call(rng, noise, QUESTIONS)


def front_desk(rng: random.Random, noise: RecognizerNoise) -> Call:
    return front_desk_call(rng, noise, QUESTIONS)


@pytest.mark.parametrize("practice", [facts_call, desk_call, counter, front_desk])
def test_practice_calls_are_seeded_and_their_gold_replies_right(practice) -> None:
    for seed in range(40):
        call = practice(random.Random(seed), NOISE)
        assert call.messages == practice(random.Random(seed), NOISE).messages
        assert not holds_held_out(call)
        for check in call.checks:
            if check.tool is not None:
                assert measures.fits_schema(check.tool, call.tools)
            elif check.kind in ("fact", "tool_result"):
                assert measures.says_all(str(call.messages[check.index]["content"]), check.words)


def test_no_price_is_made_up_for_what_is_not_there() -> None:
    n_denied = 0
    for seed in range(60):
        call = counter(random.Random(seed), NOISE)
        for message in call.messages[1:]:
            text = str(message["content"])
            if message["role"] == "assistant" and re.search(
                r"we don't (have|sell|offer|do) ", text
            ):
                n_denied += 1
                assert not re.search(r"\$|dollars|\d", text), text
    assert n_denied > 30


def test_a_tool_is_called_with_nothing_that_the_caller_did_not_say() -> None:
    n_asked = n_called = 0
    for seed in range(150):
        call = front_desk(random.Random(seed), NOISE)
        for at, message in enumerate(call.messages):
            said = " ".join(str(m["content"]) for m in call.messages[:at] if m["role"] == "user")
            n_asked += "name" in str(message["content"]) and message["role"] == "assistant"
            if "tool_calls" not in message or call.style != "written":
                continue
            for value in message["tool_calls"][0]["function"]["arguments"].values():
                n_called += 1
                spoken = number_words(value) if isinstance(value, int) else str(value)
                wanted = {spoken.lower(), " ".join(spoken).lower(), str(value).lower()}
                assert any(words in said.lower() for words in wanted), (value, said)
    assert n_asked > 10 and n_called > 60
