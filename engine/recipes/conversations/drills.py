"""Short drills that teach copying and looking up before anything else.

A small model answers from its prompt only once attention heads that copy have formed; dense,
varied copying brings that about in a fraction of the tokens that whole calls need.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from .lexicon import (
    DRINKS,
    FIRST_NAMES,
    HOME_DEVICES,
    LAST_NAMES,
    MEALS,
    PASTRIES,
    SERVICES,
    TOWNS,
    invented_word,
)
from .open_words import draw
from .wording import article, clock, counted, digit_words, expand, join, number_words

_LISTS = (FIRST_NAMES, LAST_NAMES, DRINKS, PASTRIES, MEALS, SERVICES, TOWNS, HOME_DEVICES)
_KINDS = ("string", "string", "string", "integer", "array")
Drilled = tuple[list[dict[str, Any]], list[dict[str, Any]]]


def _thing(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return invented_word(rng, False)
    return draw(rng, rng.choice(_LISTS), False)


def _value(rng: random.Random) -> str:
    match rng.randrange(5):
        case 0:
            return f"${rng.randint(1, 99)}.{rng.randrange(0, 100, 5):02d}"
        case 1:
            return clock(
                rng.randint(0, 23), rng.choice((0, 15, 30, 45)), rng.choice(("am", "a.m."))
            )
        case 2:
            return digit_words(str(rng.randint(100, 9999)))
        case _:
            return _thing(rng)


def echo(rng: random.Random, vocabulary: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The agent says the caller's words again, up to three times over."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        prompt = expand(
            rng, "you repeat (what|the words) the caller says.|say it back to the caller."
        )
        messages.append({"role": "system", "content": prompt})
    for _ in range(rng.randint(1, 3)):
        if vocabulary and rng.random() < 0.6:
            words = " ".join(rng.choice(vocabulary) for _ in range(rng.randint(3, 16)))
        else:
            words = " ".join(
                digit_words(str(rng.randint(10, 10**7))) if rng.random() < 0.3 else _thing(rng)
                for _ in range(rng.randint(1, 6))
            )
        is_exact = rng.random() < 0.6
        messages.append({"role": "user", "content": words if is_exact else words.lower()})
        lead = expand(rng, "(you said|i heard|that was|okay)(,|:) ")
        messages.append({"role": "assistant", "content": f"{lead.strip()} {words}."})
    return messages


def unlearned(messages: Sequence[dict[str, Any]]) -> set[int]:
    """All that the agent does not say: random words cannot be predicted, only copied."""
    return {at for at, message in enumerate(messages) if message["role"] != "assistant"}


def lookup(rng: random.Random, vocabulary: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A prompt of pairs; the caller asks for some of them."""
    plain = bool(vocabulary) and rng.random() < 0.4  # keys of any words at all

    def key_words() -> str:
        return " ".join(rng.choice(vocabulary) for _ in range(rng.choice((1, 2, 2, 3))))

    pairs = {key_words() if plain else _thing(rng): _value(rng) for _ in range(rng.randint(2, 10))}
    form = rng.choice(("{k}: {v}", "{k} is {v}", "{k} {v}", "{k} ({v})", "the {k} has {v}"))
    separator = rng.choice((", ", "; ", ". ", "\n"))
    messages: list[dict[str, Any]] = [
        {
            "role": "system",
            "content": separator.join(form.format(k=k, v=v) for k, v in pairs.items()) + ".",
        }
    ]
    keys = list(pairs)
    if rng.random() < 0.5:
        asked = expand(rng, "(what do you have|list them|what is there|name them all|what's on it)")
        messages.append({"role": "user", "content": asked.lower()})
        answer = expand(rng, "(sure, |)(we have|there's|that's) {l}.", l=join(keys[:7]))
        messages.append({"role": "assistant", "content": answer})
    for key in rng.sample(keys, min(len(keys), rng.randint(2, 5))):
        asked = expand(rng, "(what is|what's|how about|and|tell me|what about) (the |){k}", k=key)
        messages.append(
            {"role": "user", "content": asked.lower() if rng.random() < 0.6 else asked + "?"}
        )
        answer = expand(rng, "(the |){k} is {v}.|(that's|it's) {v}.", k=key, v=pairs[key])
        messages.append({"role": "assistant", "content": answer})
    return messages


def fill(rng: random.Random, vocabulary: Sequence[str]) -> Drilled:
    """Tools with names that mean nothing; the caller names one of them and its arguments.

    Which value belongs to which argument stands in the turn alone, so the schema must be read.
    """

    def words(low: int, high: int) -> str:
        return " ".join(rng.choice(vocabulary) for _ in range(rng.randint(low, high)))

    tools, spoken_names = [], []
    for _ in range(rng.choice((1, 2, 2, 3))):
        spoken_names.append(words(1, 2))
        arguments = {rng.choice(vocabulary): rng.choice(_KINDS) for _ in range(rng.randint(1, 4))}
        tools.append(_schema(spoken_names[-1].replace(" ", "_"), arguments, words(1, 3)))
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": f"You are {_thing(rng)}."})
    for _ in range(rng.choice((1, 2, 2, 3))):
        which = rng.randrange(len(tools))
        function = tools[which]["function"]
        values: dict[str, Any] = {}
        said = []
        for name, kind in function["parameters"]["properties"].items():
            values[name], spoken = _argument(rng, kind["type"])
            said.append(f"{name} {expand(rng, 'is|to|as|')} {spoken}".replace("  ", " "))
        rng.shuffle(said)
        lead = expand(rng, "please {n}|{n}|can you {n}|i want to {n}", n=spoken_names[which])
        messages.append({"role": "user", "content": f"{lead.lower()} {' and '.join(said)}"})
        call = {"name": function["name"], "arguments": values}
        messages.append(
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"type": "function", "function": call}],
            }
        )
        result = words(1, 2)
        messages.append({"role": "tool", "content": json.dumps({rng.choice(vocabulary): result})})
        messages.append({"role": "assistant", "content": f"It says {result}."})
    return messages, tools


def _schema(name: str, arguments: dict[str, str], description: str) -> dict[str, Any]:
    properties = {
        argument: {"type": kind} | ({"items": {"type": "string"}} if kind == "array" else {})
        for argument, kind in arguments.items()
    }
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description.capitalize() + ".",
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
            },
        },
    }


def _argument(rng: random.Random, kind: str) -> tuple[Any, str]:
    """A value and how the caller says it."""
    if kind == "integer":
        number = rng.randint(1, 40)
        return number, number_words(number) if rng.random() < 0.7 else str(number)
    if kind == "array":
        things = list(dict.fromkeys(_thing(rng).lower() for _ in range(rng.choice((1, 2, 2, 3)))))
        counts = [rng.choice((1, 1, 2, 3)) for _ in things]
        said = [
            article(thing) if count == 1 else counted(count, thing)
            for count, thing in zip(counts, things, strict=True)
        ]
        flat = [thing for count, thing in zip(counts, things, strict=True) for _ in range(count)]
        return flat, join(said)
    match rng.randrange(4):
        case 0:
            digits = str(rng.randint(100, 999999))
            return digits, " ".join(digits) if rng.random() < 0.5 else digit_words(digits)
        case 1:
            time = clock(rng.randint(1, 23), rng.choice((0, 15, 30, 45)), "am")
            return time, time
        case _:
            thing = _thing(rng)
            return thing, thing if rng.random() < 0.5 else thing.lower()
