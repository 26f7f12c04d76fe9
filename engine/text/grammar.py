"""Owns constrained decoding: which tokens may come next so that a reply obeys its grammar.

The grammar work is llguidance's (MIT, Rust), an optional package; here it is fitted to a reply.
Masks are computed while the model runs and applied before sampling, at drafted positions too, so
drafting stays exact. A grammar is a JSON schema, or tool calls as the checkpoint writes them: of a
whole reply, or of what follows the token that opens a call in a reply that may call or speak.
"""

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..types import GrammarError, SamplingParams
from .spelling import Spelling
from .tool_calls import Notation

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

    from .text import Text

log = logging.getLogger(__name__)

GAP = "/[ \\n]{0,2}/"  # around a call that was not forced, where some models write line feeds
CALL_ID = "/[a-zA-Z0-9]{9}/"  # Mistral's
NO_TOKEN = -1  # that no model says
MAX_COMPILED = 64  # grammars that are kept
# A schema that compiles within this is refused at once where it is wrong; another one's reply waits
# for it, and no step does. Most take 1 ms.
AT_ONCE_S = 0.005
# For the masks of a step, of the 30 ms that LIMITS let nine of them take: beyond it something else
# holds the machine, and this reply ends instead of holding all.
MASKS_S = 0.5
MAX_TOLD_CHARACTERS = 200  # of the library's words, which may quote a client's schema
# A client's schema decides what a mask costs, and all replies wait for each: a quarter of the
# library's own bounds for a step (its figures: 14 units of fuel a microsecond, 20 items) keeps one
# under 4 ms, a tenth of the others keeps what 64 of them hold under 2 GB.
LIMITS: dict[str, Any] = {
    "step_lexer_fuel": 50_000,
    "step_max_items": 12_500,
    "max_lexer_states": 25_000,
    "max_grammar_size": 50_000,
    "verbose_errors": False,  # they quote the whole schema, and the reply
}


@dataclass(frozen=True, slots=True)
class ComingGrammar:
    """A grammar that another thread compiles: the reply that needs it waits, and no other does.

    is_bound: it binds the whole reply, which ends where it does not compile.
    """

    compiled: "Future[LLMatcher | None]"
    make: "Callable[[LLMatcher | None, str], Grammar]"
    is_bound: bool = False

    @property
    def is_here(self) -> bool:
        return self.compiled.done()

    def grammar(self) -> "Grammar | None":
        """One at its beginning, waited for where it is not here; None if nothing compiles."""
        if (error := self.compiled.exception()) is not None:
            if not isinstance(error, GrammarError):
                log.error("a grammar could not be compiled", exc_info=error)
            found = str(error) if isinstance(error, GrammarError) else type(error).__name__
            return self.make(None, found) if self.is_bound else None
        matcher = self.compiled.result()
        return None if matcher is None else self.make(matcher.deep_copy(), "")

    def refuse_at_once(self) -> None:
        """Raises: GrammarError where it does not compile and that shows within `AT_ONCE_S`."""
        try:
            error = self.compiled.exception(AT_ONCE_S)
        except TimeoutError:
            return
        if isinstance(error, GrammarError):
            raise error


@dataclass(frozen=True, slots=True)
class OfferedCalls:
    """The grammars that bind the calls of a reply that may call or speak.

    open_id: the token that opens a call. closes: whether a mark ends it, and the reply is free
    again. begin: the grammar of what follows `open_id`; force: of a whole reply that is a call,
    compiled from when it is asked for.
    """

    open_id: int
    closes: bool
    begin: ComingGrammar
    force: Callable[[], ComingGrammar]


class GrammarCompiler:
    """Makes grammars for one tokenizer; its table of tokens is built at the first need."""

    def __init__(self, text: "Text", n_vocab: int) -> None:
        self._text, self._n_vocab = text, n_vocab
        self._compiled = lru_cache(MAX_COMPILED)(
            lambda compile, *given: self._compiler.submit(compile, *given)
        )

    def warm_up(self) -> None:
        """Build the table of tokens now: for large vocabularies it takes a while."""
        try:
            _ = self._tokenizer
        except GrammarError:
            pass  # whoever asks for a grammar is told

    @cached_property
    def _tokenizer(self) -> "LLTokenizer":
        try:
            from llguidance import LLTokenizer
        except ImportError:
            raise GrammarError("expected llguidance for constrained replies, found none") from None
        stop_ids = sorted(self._text.stop_ids)
        if not stop_ids:
            raise GrammarError("expected an end-of-turn token in the checkpoint, found none")
        return LLTokenizer(self._text.tokenizer.to_str(), n_vocab=self._n_vocab, eos_token=stop_ids)

    @cached_property
    def _spelling(self) -> Spelling:
        """Whether JSON becomes tokens of the same bytes, or of others that decode to it."""
        encode, decode = self._text.tokenizer.encode, self._tokenizer.decode_str
        return Spelling.of(lambda text: str(decode(encode(text, add_special_tokens=False).ids)))

    @cached_property
    def _worker(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, thread_name_prefix="grammar")

    @cached_property
    def _compiler(self) -> ThreadPoolExecutor:
        """Apart from the thread of the masks: no reply waits for another's tools."""
        return ThreadPoolExecutor(1, thread_name_prefix="grammar compiler")

    def of(self, params: SamplingParams, notation: Notation | None) -> ComingGrammar | None:
        """Compile the grammar these parameters ask for. Raises: GrammarError."""
        if params.forced_tools is not None:
            if notation is None:
                raise GrammarError("expected a chat template that knows tool calls, found none")
            compiled = self._compiled(self._calls, params.forced_tools, notation, True)
        elif params.json_schema is not None:
            compiled = self._compiled(self._compile_schema, params.json_schema)
        else:
            return None
        coming = ComingGrammar(compiled, self._grammar, is_bound=True)
        coming.refuse_at_once()
        return coming

    def _compile_schema(self, text: str) -> "LLMatcher":
        schema = json.dumps(_read_json(text, "a JSON schema"))
        return self._compile(f"start: %json {schema}\n", "a JSON schema that compiles")

    def offered(self, params: SamplingParams, notation: Notation | None) -> OfferedCalls | None:
        """Compile the grammars of the tools that a reply may call; None where none can be bound.

        A mark of several tokens opens none: its first may begin what is said. Where calls have no
        mark at all (Llama), a reply that begins as one is begun again as a bound call.
        """
        tools, is_bound = params.offered_tools, params.forced_tools or params.json_schema
        if tools is None or is_bound or notation is None:
            return None

        def coming(is_forced: bool) -> ComingGrammar:
            compiled = self._compiled(self._compile_offer, tools, notation, is_forced)
            return ComingGrammar(compiled, self._grammar)

        if notation.keep_open:
            return OfferedCalls(NO_TOKEN, False, coming(True), lambda: coming(True))
        open_id = self._text.tokenizer.token_to_id(notation.open)
        if open_id is None:
            return None
        return OfferedCalls(open_id, bool(notation.close), coming(False), lambda: coming(True))

    def _compile_offer(self, tools: str, notation: Notation, is_forced: bool) -> "LLMatcher | None":
        """Compile the offer with arguments by their schemas, else as any JSON object, else None."""
        for by_schema in (True, False):
            try:
                if self._spelling is not Spelling.OTHER or is_forced or not by_schema:
                    return self._calls(tools, notation, is_forced, by_schema=by_schema)
            except GrammarError:
                continue
        return None

    def _compile(self, lark: str, expected: str) -> "LLMatcher":
        tokenizer = self._tokenizer
        from llguidance import LLMatcher, LLParserLimits

        grammar, limits = LLMatcher.grammar_from_lark(lark), LLParserLimits(**LIMITS)
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            found = matcher.get_error().splitlines()[0]
            raise GrammarError(f"expected {expected}, found: {found[:MAX_TOLD_CHARACTERS]}")
        return matcher

    def _grammar(self, matcher: "LLMatcher | None", error: str) -> "Grammar":
        return Grammar(matcher, self._n_vocab, self._worker, error)

    def _calls(
        self, tools: str, notation: Notation, is_forced: bool, *, by_schema: bool = True
    ) -> "LLMatcher":
        """One forced call with its opening mark, or one that was opened (of a list, several)."""
        found = _read_json(tools, "tools as JSON")
        if not (isinstance(found, list) and found and all(map(_is_tool, found))):
            raise GrammarError("expected a list of tools with names, found other JSON")
        begin = self._mark(notation.open) if is_forced and not notation.keep_open else ""
        # As templates write JSON, or without its spaces; free whitespace would let a model that is
        # forced to speak write nothing else until its limit.
        around, gap = "" if is_forced else GAP, self._spelling.gap
        between = self._mark(notation.open) if notation.arguments_mark else f'"," /{gap}/'
        calls = "call" if is_forced else f"call ({between} call)*"
        calls = f'"[" {calls} "]"' if notation.is_list else "call"
        lines = [f"start: {begin} {around} {calls} {around} {self._mark(notation.close)}"]
        lines.append("call: " + " | ".join(f"call{i}" for i in range(len(found))))
        style = {
            "whitespace_flexible": False, "item_separator": f",{gap}", "key_separator": f":{gap}",
        }  # fmt: skip
        call_id = f"({self._mark(notation.id_mark)} {CALL_ID})?" if notation.id_mark else ""
        space = "" if self._spelling is Spelling.PLAIN else "/ ?/"
        head, key = json.dumps('{"name":'), json.dumps(f'{notation.arguments_key}":')
        for i, tool in enumerate(found):
            schema: dict[str, Any] = {"type": "object", "x-guidance": style}
            if by_schema:  # arguments that the schema does not name would be made up
                parameters = {"additionalProperties": False, **(tool.get("parameters") or {})}
                schema |= self._spelling.schema(parameters)
            if notation.arguments_mark:
                written = (
                    f"{json.dumps(tool['name'])} {call_id} {self._mark(notation.arguments_mark)}"
                )
                lines.append(f"call{i}: {written} arguments{i}")
            else:
                name = json.dumps(json.dumps(tool["name"], ensure_ascii=False) + ",")
                lines.append(
                    f'call{i}: {head} /{gap}/ {name} /{gap}/ "\\"" {space} {key} /{gap}/ '
                    f'arguments{i} "}}"'
                )
            lines.append(f"arguments{i}: %json {json.dumps(schema)}")
        return self._compile("\n".join(lines) + "\n", "tools whose parameters compile")

    def _mark(self, mark: str) -> str:
        """A mark of the notation in Lark: its token where it has one, else its text."""
        token = self._text.tokenizer.token_to_id(mark) if mark else None
        return f"<[{token}]>" if token is not None else json.dumps(mark) if mark else ""


class Grammar:
    """The progress of one reply through its grammar.

    error: why there is none. It then forbids nothing, and refuses the token that is chosen.
    """

    def __init__(
        self,
        matcher: "LLMatcher | None",
        n_vocab: int,
        worker: ThreadPoolExecutor,
        error: str = "",
    ) -> None:
        self._matcher, self._n_vocab, self._worker = matcher, n_vocab, worker
        self._error = error
        self._n_wanted = 1  # masks of the step
        self._masks: Future[list[bytes]] | None = None

    def prepare(self, proposals: Sequence[int]) -> None:
        """Begin to compute the masks of a step: for its next token, and after each proposal."""
        self._n_wanted = 1 + len(proposals)
        if not self._error:
            self._masks = self._worker.submit(self._compute, tuple(proposals))

    def _settle(self) -> list[bytes] | None:
        """The step's masks, where some were begun: the matcher serves one thread at a time."""
        if self._masks is None or self._error:
            return None
        try:
            return self._masks.result(MASKS_S)
        except TimeoutError:
            self._masks.cancel()
            self._error = f"expected the masks of a step within {MASKS_S:g} s, found none"
            return None

    def _compute(self, proposals: Sequence[int]) -> list[bytes]:
        assert self._matcher is not None
        masks = [self._matcher.compute_bitmask()]
        n_consumed = 0
        for token in proposals:
            if not self._matcher.try_consume_tokens([token]):
                break
            n_consumed += 1
            masks.append(self._matcher.compute_bitmask())
        self._matcher.rollback(n_consumed)
        return masks

    def forced(self, n_most: int) -> list[int]:
        """Return up to `n_most` tokens that come next whatever the model would say: keys, names,
        marks.

        As the tokenizer spells them by itself; a model may choose another spelling of the bytes.
        """
        self._settle()  # of a step that was given up
        if self._error or self._matcher is None:
            return []
        return [int(token) for token in self._matcher.compute_ff_tokens()[:n_most]]

    def masks(self) -> list[bytes]:
        """Make a mask for the next token, and one after each proposal that obeys the grammar.

        A bit a token, lowest first, set where the grammar allows it.
        """
        masks = self._settle()
        if self._error:
            return self._n_wanted * [b"\xff" * (4 * -(-self._n_vocab // 32))]
        return masks if masks is not None else self._compute(())

    def mask(self, logits: Tensor, index: int) -> Tensor:
        """-inf for every token forbidden after `index` proposals; `logits` [vocab] stay as is.

        Raises: GrammarError.
        """
        masks = self.masks()
        self._check()
        assert self._matcher is not None
        if self._matcher.is_error() or index >= len(masks):
            found = self._matcher.get_error().splitlines() or ["nothing that may follow"]
            raise GrammarError(f"the grammar gave up: {found[0][:MAX_TOLD_CHARACTERS]}")
        words = torch.frombuffer(bytearray(masks[index]), dtype=torch.uint8)
        bits = (words[:, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        allowed = bits.flatten()[: self._n_vocab].bool().to(logits.device)
        return logits.masked_fill(~allowed, -torch.inf)

    def advance(self, token: int) -> None:
        """The reply goes on with `token`. Raises: GrammarError."""
        self._settle()
        self._check()
        assert self._matcher is not None
        if not self._matcher.consume_token(token):
            raise GrammarError(f"expected a token the grammar allows, found token {token}")

    def _check(self) -> None:
        if self._error:
            raise GrammarError(self._error)

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end can follow."""
        return self._matcher is not None and bool(self._matcher.is_stopped())


def _read_json(text: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise GrammarError(f"expected {expected}, found {error}") from None


def _is_tool(tool: Any) -> bool:
    return isinstance(tool, dict) and isinstance(tool.get("name"), str)
