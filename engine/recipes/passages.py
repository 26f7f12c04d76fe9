"""Owns the texts that formats are compared on: what a model answers itself, or what people did."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

import torch
from torch import Tensor

from ..engine import Engine
from ..quality import REPLY_TOKENS, WINDOW_TOKENS, Passage, spoken
from ..text.text import Text

TURNS_OF_A_DIALOGUE = 3  # that are answered, the first ones


def reply_places(text: Text, tokens: Tokens[int]) -> Tensor:
    """Return which of `tokens` the assistant says, its end of turn included: bool [n].

    All of them in a text without the checkpoint's assistant header.
    """
    turn = [{"role": "user", "content": "a"}]
    header = list[int]()
    if text.template_source:
        n_shared = len(text.encode_chat(turn))
        header = text.encode_chat(turn, add_generation_prompt=True)[n_shared:]
    places, speaks = [], False
    for i, token in enumerate(tokens):
        places.append(speaks)
        if speaks and token in text.stop_ids:
            speaks = False
        elif header and list(tokens[i + 1 - len(header) : i + 1]) == header:
            speaks = True
    return torch.tensor(places) if any(places) else torch.ones(len(places), dtype=torch.bool)


def passage(text: Text, tokens: Tokens[int]) -> Passage:
    """Return the passage of a text as it is written, and where the assistant speaks."""
    return Passage(list(tokens), reply_places(text, tokens))


def _dialogues(n_dialogues: int) -> list[list[dict[str, str]]]:
    """Messages of held-out dialogues between people.

    Raises: FileNotFoundError where the shared data is not here.
    """
    from .conversations.dialogues import data_directory, read_dialogues

    return [
        [{"role": role, "content": said} for role, said in one.turns]
        for one in read_dialogues(data_directory(), "star", "test")[:n_dialogues]
    ]


def peoples_replies(text: Text, n_dialogues: int, n_most: int) -> list[Passage]:
    """Return what people answered in dialogues of at most so many tokens together.

    Raises: FileNotFoundError, TemplateError.
    """
    passages, n_left = list[Passage](), n_most
    for messages in _dialogues(n_dialogues):
        tokens = text.encode_chat(messages)[:n_left]
        n_left -= len(tokens)
        if len(tokens) > 1:
            passages.append(passage(text, tokens))
    return passages


def own_replies(
    engine: Engine, n_dialogues: int, n_most: int, instructions: str = ""
) -> list[Passage]:
    """Return what a model answers itself, greedily, to the first turns of callers in such
    dialogues.

    n_most: tokens to be read, prompts included. instructions: a system message before each.
    Raises: FileNotFoundError, TemplateError.
    """
    system = [{"role": "system", "content": instructions}] if instructions else []
    prompts, n_left = list[list[int]](), n_most
    for said in _dialogues(n_dialogues):
        messages = [*system, *said]
        turns = [i for i, message in enumerate(messages) if message["role"] == "user"]
        for i in turns[:TURNS_OF_A_DIALOGUE]:
            prompt = engine.text.encode_chat(messages[: i + 1], add_generation_prompt=True)
            n_left -= len(prompt) + REPLY_TOKENS
            if n_left >= 0 and len(prompt) + REPLY_TOKENS <= WINDOW_TOKENS:
                prompts.append(prompt)
    return spoken(engine, prompts)
