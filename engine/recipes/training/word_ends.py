"""The places where a caller may have finished: the ends of the words of caller turns.

Owns the conversations that an end-of-turn head learns from, in each style that recognizers write,
and their encoding: one forward pass over a conversation tells of every word end of it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.text.text import Text

from ..conversations.calls import generate_call, is_held_out_turn
from ..conversations.dialogues import as_messages
from .corpus import Corpus

Style = Literal["recognized", "noisy", "written"]

# Most recognizers that stream write neither case nor marks, and all of them mishear.
STYLES: dict[Style, int] = {"recognized": 40, "noisy": 40, "written": 20}
# Conversations per hundred. Free talk and many kinds of tasks: a head that learned from the
# generated calls alone would know their few ways to go on.
SOURCES = {"calls": 12, "sgd": 24, "star": 18, "tm4": 10, "tm3": 12, "selfdlg": 20, "mschat": 4}
NOISE_RATES = (0.05, 0.5)  # of the words of a conversation: from a good recognizer to a poor one
CUT_SHARE = 0.5  # of the written conversations
LAST_SENTENCES = ".", "...", "?"

_WORD = re.compile(r"\S+")
_MARKS = ".,!?;:…\"'"
_SEAM = "\ue0f3"  # on either side of a caller's turn; no tokenizer ever sees it


@dataclass(frozen=True, slots=True)
class WordEnds:
    """One encoded conversation: at tokens[places[i]] a caller's word ends, is_last: the turn too.

    A word's marks are a place of their own: recognizers that write them add them when they like.
    """

    style: Style
    tokens: list[int]
    places: list[int]
    is_last: list[bool]


def conversations(
    corpus: Corpus, text: Text, rng: random.Random, max_tokens: int, *, held_out: bool = False
) -> Iterator[WordEnds]:
    """Without end: conversations of the mixture, each in one style; none holds a demo's turn.

    held_out: generated calls have names, and half of their items, that training never has.
    """
    while True:
        style = rng.choices(list(STYLES), weights=list(STYLES.values()))[0]
        messages, tools = _draw(corpus, rng, style, held_out)
        is_cut = style == "written" and rng.random() < CUT_SHARE and _cut(messages, rng)
        said = [message["content"] for message in messages if message["role"] == "user"]
        # A cut or a misheard word may leave one where the whole turn was none.
        if said and not any(map(is_held_out_turn, said)):
            yield encode(text, messages, tools, style, max_tokens, last_is_cut=is_cut)


def _draw(
    corpus: Corpus, rng: random.Random, style: Style, held_out: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    source = rng.choices(list(SOURCES), weights=list(SOURCES.values()))[0]
    if source == "calls":
        call = generate_call(rng.randrange(1 << 60), corpus.noise, corpus.chatter, held_out)
        messages, tools = [dict(message) for message in call.messages], call.tools
    else:
        messages = as_messages(
            rng.choice(corpus.dialogues[source]), rng, corpus.noise, style="written"
        )
        tools = []
    rate = rng.uniform(*NOISE_RATES)
    for message in messages:
        if message["role"] == "user" and style == "recognized":
            message["content"] = corpus.noise.clean(message["content"], rng)
        elif message["role"] == "user" and style == "noisy":
            message["content"] = corpus.noise.noisy(message["content"], rng, rate)
    return messages, tools


def _cut(messages: list[dict[str, Any]], rng: random.Random) -> bool:
    """End the conversation within a caller's turn, at a full stop that the caller did not say."""
    long = [i for i, m in enumerate(messages) if m["role"] == "user" and " " in m["content"]]
    if not long:
        return False
    place = rng.choice(long)
    words = messages[place]["content"].split()
    kept = " ".join(words[: rng.randrange(1, len(words))]).rstrip(_MARKS)
    messages[place]["content"] = kept + rng.choice(LAST_SENTENCES)
    del messages[place + 1 :]
    return True


def encode(
    text: Text,
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
    style: Style,
    max_tokens: int,
    *,
    last_is_cut: bool = False,
) -> WordEnds:
    """Tokens and word ends of a conversation; last_is_cut: its last turn has no end."""
    marked = [
        {**message, "content": f"{_SEAM}{message['content'].strip()}{_SEAM}"}
        if message["role"] == "user"
        else message
        for message in messages
    ]
    # The template's and the agent's words, and every other one what the caller says.
    parts = text.render(marked, tools, False).split(_SEAM)
    encoding = text.tokenizer.encode("".join(parts), add_special_tokens=False)
    ends_at = {end: token for token, (_, end) in enumerate(encoding.offsets) if token < max_tokens}
    places, is_last, start = list[int](), list[bool](), 0
    for index, part in enumerate(parts):
        is_whole = not (last_is_cut and index == len(parts) - 2)
        words = list(_WORD.finditer(part)) if index % 2 else []
        for word in words:
            bare = len(word.group().rstrip(_MARKS))
            for end in {word.start() + bare, word.end()} if bare else {word.end()}:
                if start + end in ends_at:
                    places.append(ends_at[start + end])
                    is_last.append(is_whole and word is words[-1])
        start += len(part)
    return WordEnds(style, encoding.ids[:max_tokens], places, is_last)
