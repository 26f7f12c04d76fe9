"""Prompts of a wanted length, each unlike the others from its first word on. Pure.

A service with a prefix cache would otherwise read one prompt and answer twenty.
"""

from __future__ import annotations

import random

# Short common words, each one token with its space in the vocabularies of Llama, Qwen and GPT: so
# that many words are about that many tokens. What the service counts is told beside it.
WORDS = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work number night "
    "point home water room mother area money story fact month lot right study book eye job word"
).split()
QUESTION = "Here are some words. Write a long story with them, and do not stop early: "
QUESTION_TOKENS = 16


def prompt_of(n_tokens: int, seed: int) -> str:
    """About ``n_tokens`` long; the same seed gives the same words."""
    draw = random.Random(seed)
    words = (draw.choice(WORDS) for _ in range(max(1, n_tokens - QUESTION_TOKENS)))
    return f"{draw.choice(WORDS)} {draw.getrandbits(32)}. {QUESTION}{' '.join(words)}"
