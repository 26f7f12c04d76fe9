"""What is said in an hour's call: 20 facts to be remembered, and much that need not be.

Owns the planted facts, each with the words that the prompt must hold at the end, the talk between
them, and the order of both. Facts are told in as many ways as callers have: of themselves, as
answers to questions, in read-backs that they confirm, by what a tool returned, by what the agent
promised. Most of the talk between is of the same shape, so that nothing but order tells them apart.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WORDS_A_MINUTE = 150  # of both together, as people talk on the telephone
WORDS_A_REPLY = 12  # of the embedded agent, on average


@dataclass(frozen=True, slots=True)
class Planted:
    """agent: what it had said before, "" for nothing. caller: what is said then. kept: words that
    the prompt must hold, in any order. called: the tool, its arguments and its result.
    """

    caller: str
    kept: tuple[str, ...]
    agent: str = ""
    called: tuple[str, dict[str, Any], dict[str, Any]] | None = None


PLANTED: tuple[Planted, ...] = (
    Planted("Hi, my name is Teresa Okafor.", ("teresa okafor",)),
    Planted("It is 020 7946 0812.", ("020 7946 0812",), "What is your phone number?"),
    Planted("My e-mail is teresa at larkfield dot org.", ("teresa at larkfield dot org",)),
    Planted("I'm allergic to hazelnuts.", ("hazelnuts",)),
    Planted("Saturday the ninth of May.", ("ninth of may",), "Which day is the party?"),
    Planted("There will be fourteen of us.", ("fourteen",), "How many people are coming?"),
    Planted("Yes, that's right.", ("two carrot cakes", "half past three"),
            "So two carrot cakes at half past three. Is that right?"),
    Planted("We live at 27 Quarry Lane.", ("27 quarry lane",)),
    Planted("Thank you.", ("candles in the box",), "I'll put candles in the box for you."),
    Planted("Please order a tray of rolls.", ("rolls", "r-3318"),
            called=("place_order", {"item": "tray of rolls"}, {"order": "R-3318"})),
    Planted("My husband's name is Ravi, he will collect it.", ("ravi",)),
    Planted("The blue one, on the corner.", ("blue one",), "Which door is yours?"),
    Planted("I have a voucher with the number 5521.", ("5521",)),
    Planted("Yes, exactly.", ("teresa", "larkfield"),
            "And the receipt goes to Teresa at Larkfield, correct?"),
    Planted("My budget is ninety pounds.", ("ninety pounds",)),
    Planted("We need it without sugar for my aunt.", ("without sugar",)),
    Planted("Great.", ("call you on thursday",), "I'll call you on Thursday about the flowers."),
    Planted("Can you reserve the big table?", ("big table", "t-07"),
            called=("reserve_table", {"table": "big table"}, {"table": "T-07"})),
    Planted("No, it is 0813 at the end, not 0812.", ("0813",),
            "Your number is 020 7946 0812. Is there anything else?"),
    Planted("I paid a deposit of twenty in cash.", ("deposit of twenty",)),
)  # fmt: skip

# What the caller asks at the end, of each fact; none gives away its words.
ASKED = (
    "What is my name?", "What is my phone number?", "What is my e-mail address?",
    "What am I allergic to?", "Which day is the party?", "How many people are coming?",
    "What did I order, and for when?", "Where do we live?", "What did you promise to put in?",
    "What did the bakery get for me, under which number?", "Who will collect it?",
    "Which door is ours?", "What is the number of my voucher?", "Who gets the receipt?",
    "What is my budget?", "How does my aunt need it?", "When will you ring me?",
    "What did you reserve for me?", "What does my number end in?", "What have I paid already?",
)  # fmt: skip
QUESTIONS = (
    "How much is a latte?", "What time do you open on Saturday?", "Do you have oat milk?",
    "What pastries do you have?", "Where are you?", "Can I bring my dog?",
    "Are you open on Sunday?", "How much is the carrot cake?", "What drinks do you have?",
    "Is there wifi?",
    "What time do you close tonight?", "Do you have anything with blueberries?",
)  # fmt: skip
STARTS = (
    "You know,", "Well,", "As I was saying,", "Oh, and", "Funny thing,", "By the way,", "So",
    "Anyway,",
)  # fmt: skip
WHO = (
    "I was at the market", "my neighbour came round", "we went for a walk",
    "I read about the river", "my sister rang me up", "I was mending the fence",
    "the children were playing outside",
    "we were looking at old photographs", "I tried a new kind of bread",
)  # fmt: skip
WHEN = (
    "this morning", "last week", "the other day", "on the way home", "before the rain came",
    "after lunch", "when it was still dark",
)  # fmt: skip
THEN = (
    "and it reminded me of the cafe", "and nobody could believe it", "and it took the whole day",
    "which was lovely in its way", "so I thought I would give you a ring",
    "and that was the end of that", "but you never know with the weather",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of the caller; planted: what it is to be remembered for, None for other talk."""

    text: str
    planted: Planted | None = None


def turns_of(minutes: float, seed: int) -> tuple[Turn, ...]:
    """The caller's turns of so many minutes; facts are spread over the first three quarters."""
    draw = random.Random(seed)
    n_words, talk = 0.0, []
    while n_words < minutes * WORDS_A_MINUTE:
        text = draw.choice(QUESTIONS)
        if draw.random() < 0.6:
            text = " ".join(map(draw.choice, (STARTS, WHO, WHEN, THEN))) + f". {text}"
        talk.append(Turn(text))
        n_words += len(text.split()) + WORDS_A_REPLY
    every = max(1, 3 * len(talk) // (4 * len(PLANTED)))
    for number, planted in reversed(tuple(enumerate(PLANTED))):
        talk.insert(min(len(talk), number * every), Turn(planted.caller, planted))
    return tuple(talk)


def items_of(turn: Turn, number: int) -> list[dict[str, Any]]:
    """The items that a client puts into the conversation for this turn, in order."""
    items = []
    planted = turn.planted
    if planted is not None and planted.agent:
        items.append(_message("assistant", "output_text", planted.agent))
    items.append(_message("user", "input_text", turn.text))
    if planted is not None and planted.called is not None:
        name, arguments, result = planted.called
        call = {"call_id": f"planted_{number}", "name": name, "arguments": json.dumps(arguments)}
        items.append({"type": "function_call", **call})
        output = {"call_id": f"planted_{number}", "output": json.dumps(result)}
        items.append({"type": "function_call_output", **output})
    return items


def _message(role: str, kind: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def recalled(planted: Sequence[Planted], prompt: str) -> list[bool]:
    """Which of the facts stand in the prompt."""
    seen = prompt.lower()
    return [all(words in seen for words in one.kept) for one in planted]
