"""Calls to agents of many trades: replies come from the prompt, and what it lacks is admitted."""

from __future__ import annotations

import random

import pytest

from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from engine.recipes.conversations.trades import trade_call

NOISE = RecognizerNoise(["garden", "window", "river", "market", "friday", "second"])
QUESTIONS = ("who wrote hamlet",)
SEEDS = range(120)


@pytest.fixture(scope="module")
def calls():
    return [trade_call(random.Random(f"trades/{seed}"), NOISE, QUESTIONS) for seed in SEEDS]


def test_what_a_reply_says_of_the_house_stands_in_its_prompt(calls):
    for call in calls:
        prompt = str(call.messages[0]["content"])
        for check in call.checks:
            if check.kind == "fact" and any(c.isdigit() for word in check.words for c in word):
                assert any(word in prompt for word in check.words), (prompt, check.words)


def test_a_booking_calls_its_tool_with_every_argument_of_the_schema(calls):
    checked = 0
    for call in calls:
        for check in call.checks:
            if check.tool is None:
                continue
            (schema,) = call.tools
            properties = schema["function"]["parameters"]["properties"]
            assert list(check.tool["arguments"]) == list(properties)
            for name, value in check.tool["arguments"].items():
                expected = int if properties[name]["type"] == "integer" else str
                assert isinstance(value, expected)
            checked += 1
    assert checked > 20
