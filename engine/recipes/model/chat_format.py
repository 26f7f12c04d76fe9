"""The agent's chat template and its byte-level BPE tokenizer.

Owns the special tokens, the Jinja template that ships (any Hugging Face runtime can render it), and
how a rendered conversation becomes training tokens with loss weights.

A conversation reads: `<|system|>prompt<|tools|>signatures<|end|><|user|> words<|end|><|assistant|>
words<tool_call>{"name": ..., "arguments": {...}}</tool_call><|end|><|tool|>json<|end|>`.
Tool schemas are written as short signatures, `book(day: string, people: integer): Make a booking.`,
which costs a third of the tokens of their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from ..conversations.wording import STOP_WORDS

SYSTEM, TOOLS, USER, ASSISTANT, TOOL, END, PAD = (
    "<|system|>",
    "<|tools|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
    "<|pad|>",
)
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
CONTROL_TOKENS = (PAD, END, SYSTEM, TOOLS, USER, ASSISTANT, TOOL)
# Kept when decoding, so that a runtime can parse tool calls out of the text.
TEXT_TOKENS = (CALL_OPEN, CALL_CLOSE)

EMBEDDED = Path(__file__).resolve().parents[2] / "embedded"
CHAT_TEMPLATE = (EMBEDDED / "agent" / "chat_template.jinja").read_text()


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a chat template writes messages.

    headers: what stands before the content, by role; end: the token that ends a message.
    """

    template: str
    headers: Mapping[str, str]
    end: str
    pad: str

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[dict[str, Any]] = (),
        add_generation_prompt: bool = False,
    ) -> str:
        """Messages as text with the special tokens written out."""
        return _compiled(self.template).render(
            messages=list(messages),
            tools=list(tools) or None,
            add_generation_prompt=add_generation_prompt,
        )


# The format of the model that is trained from nothing.
OWN_FORMAT = ChatFormat(
    CHAT_TEMPLATE, {"system": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}, END, PAD
)


@lru_cache(maxsize=4)
def _compiled(source: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # As transformers does it: no HTML escapes, keys in their own order.
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(source)


def render_chat(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    add_generation_prompt: bool = False,
) -> str:
    """Render messages in the format of the model that is trained from nothing."""
    return OWN_FORMAT.render(messages, tools, add_generation_prompt)


def space_quoted_words(tokenizer: Tokenizer) -> None:
    """Give a word in a tool call's JSON the tokens that the caller's word has.

    Byte-level BPE writes a word after a space and the same word after a quotation mark as
    different tokens, so that an argument could not be copied but had to be spelled from memory. A
    space is put behind the opening quote before encoding and taken out again in decoding. Not so
    behind `{"` and for the tool's name: in the signature these follow no space either.
    """
    tokenizer.normalizer = normalizers.Replace(
        Regex(r'(?<=[:,] "|\[")(?<!\A\{"name": ")(?=[A-Za-z])'), " "
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteLevel(), decoders.Replace(Regex(r'(?<= "|\[") (?=[A-Za-z])'), "")]
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int = 4096) -> Tokenizer:
    """Train the BPE. Digits stay single, so that prices and numbers can be copied and read."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    space_quoted_words(tokenizer)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[*CONTROL_TOKENS, *TEXT_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer marks all as special; the call marks must survive decoding.
    data = json.loads(tokenizer.to_str())
    for token in data["added_tokens"]:
        token["special"] = token["content"] in CONTROL_TOKENS
    return Tokenizer.from_str(json.dumps(data))


def added_tokens() -> list[AddedToken]:
    """The special tokens in id order, for `tokenizer_config.json`."""
    return [
        AddedToken(token, special=token in CONTROL_TOKENS, normalized=False)
        for token in (*CONTROL_TOKENS, *TEXT_TOKENS)
    ]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token.

    Raises:
        ValueError: the tokenizer does not know it.
    """
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"expected a tokenizer with {token}, found none in it")
    return found


def _content_of_tokens(tokenizer: Tokenizer) -> list[str]:
    """For each token its letters or figures, lower case; empty for marks and stop words."""
    n_tokens = tokenizer.get_vocab_size()
    texts = [tokenizer.decode([token]).strip().lower() for token in range(n_tokens)]
    return ["" if not text.isalnum() or text in STOP_WORDS else text for text in texts]


class Span(NamedTuple):
    """One message: tokens[first:stop] are its content and what ends it."""

    role: str
    first: int
    stop: int


class ChatEncoder:
    """Encodes conversations with a loss weight for each token.

    The weight at index i is that of predicting token i. Caller words and the caller's end of turn
    share one weight, so that the probability of the end stays calibrated after every prefix.
    """

    USER_WEIGHT = 0.4
    PROMPT_WEIGHT = 0.0
    # Words that the agent takes from the call or the prompt: names, items, times, arguments. They
    # are what a reply is wrong about, and a small part of its tokens.
    COPY_WEIGHT = 2.0
    # A reply that says the caller's words again weighs more as a whole: a caller who was heard
    # wrong can only notice it there.
    CONFIRMED_WORD_WEIGHT = 0.4
    MAX_REPLY_WEIGHT = 3.0

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_format: ChatFormat = OWN_FORMAT,
        user_weight: float = USER_WEIGHT,
    ) -> None:
        self.tokenizer, self.format = tokenizer, chat_format
        self.end = token_id(tokenizer, chat_format.end)
        self.pad = token_id(tokenizer, chat_format.pad)
        self._headers = {
            role: tokenizer.encode(header, add_special_tokens=False).ids
            for role, header in chat_format.headers.items()
        }
        self._content = _content_of_tokens(tokenizer)
        self._role_weight = {
            "system": self.PROMPT_WEIGHT, "user": user_weight, "assistant": 1.0, "tool": 0.0,
        }  # fmt: skip

    def spans(self, tokens: Sequence[int]) -> list[Span]:
        """The messages of an encoded conversation, in order."""
        found = []
        firsts = {header[0] for header in self._headers.values()}
        for at in (at for at, token in enumerate(tokens) if token in firsts):
            for role, header in self._headers.items():
                first = at + len(header)
                if list(tokens[at:first]) == header:
                    found.append((role, at, first))
        starts = [at for _, at, _ in found[1:]] + [len(tokens)]
        return [
            Span(role, first, self._stop(tokens, first, limit))
            for (role, _, first), limit in zip(found, starts, strict=False)
        ]

    def _stop(self, tokens: Sequence[int], first: int, limit: int) -> int:
        """Behind the message's end, which a conversation that was cut may lack."""
        for at in range(first, limit):
            if tokens[at] == self.end:
                return at + 1
        return limit

    def weights(self, tokens: Sequence[int], unlearned: set[int]) -> list[float]:
        """Loss weights of an encoded conversation; `unlearned` are indices of messages.

        What stands between messages weighs nothing: who speaks next is the runtime's to say.
        """
        seen: set[str] = set()  # in earlier messages
        heard: set[str] = set()  # in earlier messages of the caller
        weights = [0.0] * len(tokens)
        for message, (role, first, stop) in enumerate(self.spans(tokens)):
            contents = [self._content[token] for token in tokens[first:stop]]
            weight = 0.0 if message in unlearned else self._role_weight[role]
            copied = seen - {""} if role == "assistant" else set[str]()
            spoken = set(contents)
            if role == "assistant":
                n_confirmed = len((spoken & heard) - {""})
                weight *= min(self.MAX_REPLY_WEIGHT, 1 + self.CONFIRMED_WORD_WEIGHT * n_confirmed)
            elif role == "user":
                heard |= spoken
            seen |= spoken
            weights[first:stop] = [
                weight * (self.COPY_WEIGHT if c in copied else 1.0) for c in contents
            ]
        return weights

    def encode_batch(
        self,
        calls: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]], set[int]]],
    ) -> list[tuple[list[int], list[float]]]:
        """Encode (messages, tools, unlearned message indices) -> (tokens, weights)."""
        texts = [self.format.render(messages, tools) for messages, tools, _ in calls]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        out = []
        for (messages, tools, unlearned), encoding in zip(calls, encoded, strict=True):
            if tools and not (messages and messages[0]["role"] == "system"):
                unlearned = {index + 1 for index in unlearned}  # the tools are a message before
            out.append((encoding.ids, self.weights(encoding.ids, unlearned)))
        return out
