"""Calls to agents of many trades: replies come from the prompt, and what it lacks is admitted."""

from __future__ import annotations

import random

import pytest

from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from engine.recipes.conversations.trades import read_trades, trade_call

NOISE = RecognizerNoise(["garden", "window", "river", "market", "friday", "second"])
QUESTIONS = ("who wrote hamlet",)
SEEDS = range(120)


@pytest.fixture(scope="module")
def calls():
    return [trade_call(random.Random(f"trades/{seed}"), NOISE, QUESTIONS) for seed in SEEDS]


def test_every_tool_asks_for_fields_that_are_described():
    trades, fields = read_trades()

    assert {name for trade in trades for name in trade.asks} == set(fields)


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


def test_a_rule_that_the_prompt_leaves_out_is_admitted(calls):
    silent = [
        call.messages[at + 1]["content"]
        for call in calls
        for at, message in enumerate(call.messages[:-1])
        if message["role"] == "user" and "don't know that, but" in call.messages[at + 1]["content"]
    ]

    assert len(silent) > 5


def test_calls_of_one_seed_are_the_same():
    first, second = (trade_call(random.Random("same"), NOISE, QUESTIONS) for _ in range(2))

    assert first.messages == second.messages and first.tools == second.tools
