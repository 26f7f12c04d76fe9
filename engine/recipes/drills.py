"""Short drills that teach copying and looking up before anything else.

A small model answers from its prompt only once attention heads that copy have formed; dense,
varied copying brings that about in a fraction of the tokens that whole calls need.
"""

from __future__ import annotations

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
    pick,
)
from .wording import clock, digit_words, expand, join

_LISTS = (FIRST_NAMES, LAST_NAMES, DRINKS, PASTRIES, MEALS, SERVICES, TOWNS, HOME_DEVICES)


def _thing(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return invented_word(rng, False)
    return pick(rng, rng.choice(_LISTS), False)


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


def lookup(rng: random.Random) -> list[dict[str, Any]]:
    """A prompt of pairs; the caller asks for some of them."""
    pairs = {_thing(rng): _value(rng) for _ in range(rng.randint(2, 10))}
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
