"""Practice calls: dense, checkable, and free of the demo's turns."""

from __future__ import annotations

import random

import pytest

from engine.recipes import measures
from engine.recipes.calls import holds_demo
from engine.recipes.practice import desk_call, facts_call, tally
from engine.recipes.recognizer_noise import RecognizerNoise

NOISE = RecognizerNoise(["latte", "ladder", "muffin", "moving"])


@pytest.mark.parametrize("practice", [facts_call, desk_call])
def test_practice_calls_are_seeded_and_their_gold_replies_right(practice) -> None:
    for seed in range(40):
        call = practice(random.Random(seed), NOISE)
        assert call.messages == practice(random.Random(seed), NOISE).messages
        assert not holds_demo(call) and call.checks
        for check in call.checks:
            if check.tool is not None:
                assert measures.fits_schema(check.tool, call.tools)
            elif check.kind == "fact":
                assert measures.says_all(str(call.messages[check.index]["content"]), check.words)


def test_prices_of_a_practice_prompt_stand_in_it() -> None:
    for seed in range(40):
        place = facts_call(random.Random(seed), NOISE).place
        assert place is not None and all(price in place.prompt for price in place.items.values())


def test_a_tally_hands_over_each_counted_thing_and_each_figure() -> None:
    n_lists = n_codes = 0
    for seed in range(60):
        messages, tools = tally(random.Random(seed), NOISE)
        for turn, reply in zip(messages[::2], messages[1::2], strict=True):
            call = reply["tool_calls"][0]["function"]
            assert measures.fits_schema(call, tools)
            (value,) = call["arguments"].values()
            if isinstance(value, list):
                n_lists += 1
                assert 1 <= len(value) <= 9
            elif value[0] in turn["content"]:
                n_codes += 1
                assert " ".join(value) in turn["content"]
    assert n_lists > 50 and n_codes > 50
