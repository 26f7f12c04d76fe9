"""The agent's chat template and its byte-level BPE tokenizer.

Owns the special tokens, the Jinja template that any Hugging Face runtime can render, and how a
rendered conversation becomes training tokens with loss weights.

A conversation reads: `<|system|>prompt<|tools|>signatures<|end|><|user|> words<|end|><|assistant|>
words<tool_call>{"name": ..., "arguments": {...}}</tool_call><|end|><|tool|>json<|end|>`.
Tool schemas are written as short signatures, `book(day: string, people: integer): Make a booking.`,
which costs a third of the tokens of their JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

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

from .wording import STOP_WORDS

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

CHAT_TEMPLATE = """\
{%- macro kind(p) -%}
{%- if p.enum is defined -%}{{ p.enum | join('|') }}
{%- elif p.type is defined and p.type == 'array' -%}[{{ p['items'].type if p['items'] is defined \
and p['items'].type is defined else 'any' }}]
{%- elif p.type is defined -%}{{ p.type }}
{%- else -%}any
{%- endif -%}
{%- endmacro -%}
{%- if messages and messages[0].role == 'system' -%}
{%- set prompt = messages[0].content | trim -%}{%- set rest = messages[1:] -%}
{%- else -%}
{%- set prompt = '' -%}{%- set rest = messages -%}
{%- endif -%}
{%- if prompt or tools -%}
<|system|>{{ prompt }}
{%- if tools -%}<|tools|>
{%- for tool in tools -%}
{%- set f = tool.function if tool.function is defined else tool -%}
{%- set spec = f.parameters if f.parameters is defined and f.parameters else {} -%}
{%- set required = spec.required if spec.required is defined else [] -%}
{%- if not loop.first %}{{ '\\n' }}{% endif -%}
{{ f.name }}(
{%- for name, p in (spec.properties if spec.properties is defined else {}).items() -%}
{{ name }}{{ '' if name in required else '?' }}: {{ kind(p) }}{{ '' if loop.last else ', ' }}
{%- endfor -%}): {{ f.description if f.description is defined else '' }}
{%- endfor -%}
{%- endif -%}<|end|>
{%- endif -%}
{%- for message in rest -%}
{%- if message.role == 'user' -%}<|user|> {{ message.content | trim }}<|end|>
{%- elif message.role == 'tool' -%}<|tool|>{{ message.content | trim }}<|end|>
{%- elif message.role == 'system' -%}<|system|>{{ message.content | trim }}<|end|>
{%- elif message.role == 'assistant' -%}<|assistant|>{{ (message.content or '') | trim }}
{%- for call in (message.tool_calls if message.tool_calls is defined and message.tool_calls else \
[]) -%}
{%- set f = call.function if call.function is defined else call -%}
<tool_call>{"name": "{{ f.name }}", "arguments": {{ f.arguments if f.arguments is string else \
f.arguments | tojson }}}</tool_call>
{%- endfor -%}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # As transformers does it: no HTML escapes, keys in their own order.
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)


def render_chat(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] = (),
    add_generation_prompt: bool = False,
) -> str:
    """Render messages as text with the special tokens written out."""
    return _template().render(
        messages=list(messages),
        tools=list(tools) or None,
        add_generation_prompt=add_generation_prompt,
    )


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

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = {token: token_id(tokenizer, token) for token in (*CONTROL_TOKENS, *TEXT_TOKENS)}
        self.end = self.ids[END]
        self.pad = self.ids[PAD]
        self._content = _content_of_tokens(tokenizer)
        self._role_weight = {
            self.ids[SYSTEM]: self.PROMPT_WEIGHT,
            self.ids[USER]: self.USER_WEIGHT,
            self.ids[ASSISTANT]: 1.0,
            self.ids[TOOL]: 0.0,
        }

    def weights(self, tokens: Sequence[int], unlearned: set[int]) -> list[float]:
        """Loss weights of an encoded conversation; `unlearned` are indices of messages."""
        starts = [i for i, token in enumerate(tokens) if token in self._role_weight]
        seen: set[str] = set()  # in earlier messages
        heard: set[str] = set()  # in earlier messages of the caller
        weights = [0.0] * (starts[0] if starts else len(tokens))
        ends = [*starts[1:], len(tokens)]
        for message, (start, end) in enumerate(zip(starts, ends, strict=False)):
            speaker, contents = tokens[start], [self._content[t] for t in tokens[start + 1 : end]]
            weight = 0.0 if message in unlearned else self._role_weight[speaker]
            copied = seen - {""} if speaker == self.ids[ASSISTANT] else set[str]()
            spoken = set(contents)
            if speaker == self.ids[ASSISTANT]:
                n_confirmed = len((spoken & heard) - {""})
                weight *= min(self.MAX_REPLY_WEIGHT, 1 + self.CONFIRMED_WORD_WEIGHT * n_confirmed)
            elif speaker == self.ids[USER]:
                heard |= spoken
            seen |= spoken
            # Who speaks next is the runtime's to say, not the model's.
            weights.append(0.0)
            weights += [weight * (self.COPY_WEIGHT if c in copied else 1.0) for c in contents]
        return weights

    def encode_batch(
        self,
        calls: Sequence[tuple[list[dict[str, Any]], list[dict[str, Any]], set[int]]],
    ) -> list[tuple[list[int], list[float]]]:
        """Encode (messages, tools, unlearned message indices) -> (tokens, weights)."""
        texts = [render_chat(messages, tools) for messages, tools, _ in calls]
        encoded = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        out = []
        for (messages, tools, unlearned), encoding in zip(calls, encoded, strict=True):
            if tools and not (messages and messages[0]["role"] == "system"):
                unlearned = {index + 1 for index in unlearned}  # the tools are a message before
            out.append((encoding.ids, self.weights(encoding.ids, unlearned)))
        return out
