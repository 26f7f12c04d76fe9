"""Owns constrained decoding: which tokens may come next so that a reply obeys a JSON schema.

The grammar work is llguidance's (MIT, Rust), an optional package; here it is fitted to a reply. A
mask is applied before sampling, at drafted positions too, so drafting stays exact under a schema.
"""

import json
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .types import GrammarError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from .text import Text


class GrammarCompiler:
    """Makes grammars for one tokenizer; its table of tokens is built at the first need."""

    def __init__(self, text: "Text", n_vocab: int) -> None:
        self._text, self._n_vocab = text, n_vocab

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise GrammarError(
                "expected the package llguidance for constrained replies, found it not installed"
            ) from None
        stop_ids = sorted(self._text.stop_ids)
        if not stop_ids:
            raise GrammarError("expected an end-of-turn token in the checkpoint, found none")
        return LLTokenizer(self._text.tokenizer.to_str(), n_vocab=self._n_vocab, eos_token=stop_ids)

    def json_schema(self, schema: str) -> "Grammar":
        """A grammar for JSON texts valid under `schema`. Raises: GrammarError."""
        try:
            json.loads(schema)
        except json.JSONDecodeError as error:
            raise GrammarError(f"expected a JSON schema, found {error}") from None
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        if matcher.is_error():
            found = matcher.get_error().splitlines()[0]
            raise GrammarError(f"expected a JSON schema that compiles, found: {found}")
        return Grammar(matcher, self._n_vocab)


class Grammar:
    """Where one reply stands in its grammar."""

    def __init__(self, matcher: "LLMatcher", n_vocab: int) -> None:
        self._matcher, self._n_vocab = matcher, n_vocab

    def mask(self, logits: Tensor) -> Tensor:
        """-inf for every token the grammar forbids next; `logits` [vocab] is not changed."""
        words = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
        bits = (words[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: self._n_vocab].bool().to(logits.device)
        return logits.masked_fill(~allowed, -torch.inf)

    def advance(self, token: int) -> None:
        """The reply goes on with `token`. Raises: GrammarError."""
        if not self._matcher.consume_token(token):
            raise GrammarError(f"expected a token the grammar allows, found token {token}")
