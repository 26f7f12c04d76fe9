"""Owns constrained decoding: which tokens may come next so that a reply obeys its grammar.

The grammar work is llguidance's (MIT, Rust), an optional package; here it is fitted to a reply.
Masks are computed while the model runs and applied before sampling, at drafted positions too, so
drafting stays exact. A grammar is a JSON schema, or one tool call as the checkpoint writes it.
"""

import json
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .tool_calls import Notation
from .types import GrammarError, SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from .text import Text

# As templates write JSON; free whitespace would let a model that is forced to speak write nothing
# else until its limit.
JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
ONE_CALL = "start: {open}{call}{close}\ncall: %json {schema}\n"


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

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="grammar")

    def of(self, params: SamplingParams, notation: Notation | None) -> "Grammar | None":
        """The grammar these parameters ask for. Raises: GrammarError."""
        if params.forced_tools is not None:
            return self._tool_call(params.forced_tools, notation)
        return None if params.json_schema is None else self._json_schema(params.json_schema)

    def _json_schema(self, schema: str) -> "Grammar":
        _read_json(schema, "a JSON schema")
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(schema), log_level=0)
        return self._compiled(matcher, "a JSON schema")

    def _tool_call(self, tools: str, notation: Notation | None) -> "Grammar":
        found = _read_json(tools, "tools as JSON")
        if notation is None:
            raise GrammarError("expected a chat template that knows tool calls, found one without")
        if not (isinstance(found, list) and found and all(map(_is_tool, found))):
            raise GrammarError(f"expected a list of tools with names, found {tools}")
        calls = [_call_schema(tool, notation.arguments_key) for tool in found]
        schema: dict[str, Any] = {"anyOf": calls}
        if notation.is_list:
            schema = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
        lark = ONE_CALL.format(
            open="" if notation.keep_open else self._mark(notation.open),
            call="call",
            close=self._mark(notation.close),
            schema=json.dumps({**schema, "x-guidance": JSON_STYLE}),
        )
        tokenizer = self._tokenizer
        from llguidance import LLMatcher

        matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0)
        return self._compiled(matcher, "tools whose parameters compile")

    def _mark(self, mark: str) -> str:
        """A mark of the notation in Lark: its token where it has one, else its text."""
        token = self._text.tokenizer.token_to_id(mark) if mark else None
        return f"<[{token}]> " if token is not None else f"{json.dumps(mark)} " if mark else ""

    def _compiled(self, matcher: "LLMatcher", expected: str) -> "Grammar":
        if matcher.is_error():
            found = matcher.get_error().splitlines()[0]
            raise GrammarError(f"expected {expected} that compiles, found: {found}")
        return Grammar(matcher, self._n_vocab, self._worker)


class Grammar:
    """Where one reply stands in its grammar."""

    def __init__(self, matcher: "LLMatcher", n_vocab: int, worker: ThreadPoolExecutor) -> None:
        self._matcher, self._n_vocab, self._worker = matcher, n_vocab, worker
        self._masks: Future[list[bytes]] | None = None

    def prepare(self, proposals: Sequence[int]) -> None:
        """Begin to compute the masks of a step: for its next token, and after each proposal."""
        self._masks = self._worker.submit(self._compute, tuple(proposals))

    def _compute(self, proposals: Sequence[int]) -> list[bytes]:
        masks = [self._matcher.compute_bitmask()]
        n_consumed = 0
        for token in proposals:
            if not self._matcher.try_consume_tokens([token]):
                break
            n_consumed += 1
            if self._matcher.is_stopped():
                break
            masks.append(self._matcher.compute_bitmask())
        self._matcher.rollback(n_consumed)
        return masks

    def mask(self, logits: Tensor, index: int) -> Tensor:
        """-inf for every token forbidden after `index` proposals; `logits` [vocab] stay as is.

        Raises: GrammarError.
        """
        masks = self._masks.result() if self._masks is not None else self._compute(())
        if self._matcher.is_error() or index >= len(masks):
            raise GrammarError(f"the grammar gave up: {self._matcher.get_error()}")
        words = torch.frombuffer(bytearray(masks[index]), dtype=torch.uint8)
        bits = (words[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: self._n_vocab].bool().to(logits.device)
        return logits.masked_fill(~allowed, -torch.inf)

    def advance(self, token: int) -> None:
        """The reply goes on with `token`. Raises: GrammarError."""
        if not self._matcher.consume_token(token):
            raise GrammarError(f"expected a token the grammar allows, found token {token}")


def _read_json(text: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"expected {expected}, found {error}") from None


def _is_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)


def _call_schema(tool: dict[str, Any], arguments_key: str) -> dict[str, Any]:
    """The JSON object that calls `tool`, keys in the order models write them."""
    # A model asked for no more than the schema names; unnamed arguments would be made up.
    parameters = {"type": "object", "additionalProperties": False, **(tool.get("parameters") or {})}
    return {
        "type": "object",
        "properties": {"name": {"const": tool["name"]}, arguments_key: parameters},
        "required": ["name", arguments_key],
        "additionalProperties": False,
    }
