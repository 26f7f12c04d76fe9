"""Generated calls: their variety is random, what the replies say is not."""

from __future__ import annotations

import random
import re

import pytest

from engine.recipes.conversations.business import random_business
from engine.recipes.conversations.calls import Chatter, generate_call, is_held_out_turn
from engine.recipes.conversations.lexicon import FIRST_NAMES, is_held_out, pick
from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from engine.recipes.measuring import measures

NOISE = RecognizerNoise(["latte", "ladder", "muffin", "moving"])
CHATTER = Chatter((("Do you sleep?", "I don't sleep."),), ("Who was Galileo?",))


def calls(count: int, held_out: bool = False, kind: str | None = None):
    return [generate_call(index, NOISE, CHATTER, held_out, kind) for index in range(count)]


@pytest.mark.parametrize("held_out", [False, True])
def test_gold_replies_pass_their_own_checks(held_out: bool) -> None:
    n_checks = 0
    for call in calls(150, held_out):
        for check in call.checks:
            reply = str(call.messages[check.index]["content"])
            if check.kind == "fact" and check.index not in call.unlearned:
                n_checks += 1
                assert measures.says_all(reply, check.words), (reply, check.words)
            elif check.kind == "refusal":
                assert measures.refuses_and_redirects(reply), reply
            elif check.tool is not None:
                assert measures.fits_schema(check.tool, call.tools), check.tool
    assert n_checks > 100


def test_values_of_facts_stand_in_the_prompt() -> None:
    for seed in range(80):
        place = random_business(random.Random(seed))
        assert all(value in place.prompt for _, _, _, value in place.facts.values())
        assert place.agent in place.prompt
        if "silent" not in place.facts:
            assert place.hours_text in place.prompt.replace("Closed", "closed") or (
                place.hours_text[0].upper() + place.hours_text[1:] in place.prompt
            )
            assert all(price in place.prompt for price in place.items.values())


def test_training_and_evaluation_names_never_meet() -> None:
    rng = random.Random(1)
    shown = {pick(rng, FIRST_NAMES, False) for _ in range(2000)}
    kept = {pick(rng, FIRST_NAMES, True) for _ in range(2000)}
    assert shown and kept and not shown & kept
    assert all(is_held_out(name) for name in kept)


@pytest.mark.parametrize(
    "text",
    [
        "Actually, just a black coffee, please.",
        "hi what time do you close on saturday",
        "well how much is the carrot cake",
    ],
)
def test_the_demo_call_is_recognized_as_held_out(text: str) -> None:
    assert is_held_out_turn(text)


def test_no_training_call_holds_a_turn_of_the_demo() -> None:
    for call in calls(150):
        assert not any(
            is_held_out_turn(str(message["content"]))
            for message in call.messages
            if message["role"] == "user"
        )
        assert "juniper" not in str(call.messages[0]["content"]).lower()


def test_recognizer_style_has_no_case_no_punctuation_and_no_figures() -> None:
    rng = random.Random(3)
    heard = NOISE.clean("At 7:30 pm, two lattes for $4.50 -- on May 3rd! Call 5550142.", rng)
    assert re.fullmatch(r"[a-z' ]+", heard)
    assert heard.startswith("at seven thirty p") and "four fifty" in heard
