"""Plain questions: their rules, the calls they are asked in, and that training never sees them."""

from __future__ import annotations

import json
import random

import pytest

from engine.recipes.conversations.calls import is_held_out_turn
from engine.recipes.conversations.plain_questions import BUSINESSES, Question, read_questions
from engine.recipes.conversations.practice import counter_call
from engine.recipes.conversations.recognizer_noise import RecognizerNoise
from engine.recipes.measuring.plain_answers import Answer, ask

NOISE = RecognizerNoise(["latte", "ladder"])


def is_met(question: Question, reply: str, called: tuple[str, ...]) -> bool:
    return Answer(question, reply, called).is_good


@pytest.mark.parametrize("business", BUSINESSES)
def test_every_rule_can_be_met_and_missed(business: str) -> None:
    for question in read_questions(business).turns:
        called = (question.tool,) if question.tool else ()
        right = ", ".join(words[0] for words in question.expect)
        assert is_met(question, f"Well: {right}.", called), question
        assert not is_met(question, "Hm.", called)
        assert not is_met(question, f'{right} <tool_call>{{"name": "x"', called)
        assert question.tool is None or not is_met(question, right, ())
        for word in question.never:
            assert not is_met(question, f"{right}, {word}", called)


def test_a_price_is_no_part_of_another_and_a_plural_is_the_thing() -> None:
    price = Question("how much", (("$3",),), ("tea",))
    assert is_met(price, "It is $3.", ()) and is_met(price, "$3, not steak", ())
    assert not is_met(price, "It is $3.50.", ()) and not is_met(price, "It is $13.", ())
    assert not is_met(price, "$3. We have teas.", ())


def test_a_tool_answers_from_the_agent_file_and_the_call_goes_on() -> None:
    call = {"name": "get_price", "arguments": {"item": "Pepperoni Pizza"}}
    heard = []

    def reply(messages, tools) -> str:
        heard.append(messages[-1])
        names = [tool["function"]["name"] for tool in tools]
        assert names == ["get_price", "get_opening_hours"]
        if messages[-1]["role"] == "user" and "pepperoni" in messages[-1]["content"]:
            return f"<tool_call>{json.dumps(call)}</tool_call>"
        return "That is 11 dollars."

    answers = ask(read_questions("pizzeria"), reply)
    assert {"role": "tool", "content": '{"price":"$11.00"}'} in heard
    good = [answer.question.text for answer in answers if answer.is_good]
    assert good == ["How much is a pepperoni pizza?"] and len(answers) == 12
    assert answers[1].called == ("get_price",)


def test_training_holds_no_plain_question_and_no_business_of_theirs() -> None:
    for business in BUSINESSES:
        for question in read_questions(business).turns:
            if len(question.text.split()) >= 3:
                assert is_held_out_turn(question.text)
                if any(letter.isdigit() for letter in question.text):
                    continue  # a recognizer writes figures in several ways
                assert is_held_out_turn(f"um {NOISE.clean(question.text, random.Random(0))}")
    for seed in range(60):
        call = counter_call(random.Random(seed), NOISE, ())
        said = [str(m["content"]) for m in call.messages if m["role"] == "user"]
        assert not any(map(is_held_out_turn, said))
        assert "Juniper" not in call.messages[0]["content"]
