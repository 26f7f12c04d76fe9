"""Owns the border between text and tokens: the tokenizer and the checkpoint's chat template."""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from ..load.json_file import read_json
from ..types import CheckpointError, PromptTooLong, TemplateError
from .call_history import CallHistory

Message = dict[str, Any]

# Stands where an open turn ends; private-use characters no tokenizer or template touches.
_CUT = "\ue0f1\ue0f2"

# An added token that is a word, a number or a run of spaces marks nothing: a caller may say it.
WORDS = re.compile(r"[\w\s'.,-]*")

# Of stretches that are remembered: a call of an hour has some 100 kB of them.
MAX_REMEMBERED_BYTES = 64 * 1024 * 1024
# No prompt of words has more characters a token; most have four. What has more cannot fit either,
# and to find that out by encoding it would hold up every call.
MOST_CHARACTERS_A_TOKEN = 16

TEMPLATE_FILE = "chat_template.jinja"
# What Python raises for an expression of a template that does not suit its operands.
MISFITS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)

NO_TOKEN = -1  # where a checkpoint has no end-of-turn token


@dataclass(frozen=True, slots=True)
class TextSource:
    """The tokenizer, template and special tokens of a checkpoint, in whatever files they lie.

    template: Jinja; "" where there is none. bos_token, eos_token: what templates may spell out.
    """

    tokenizer: Tokenizer
    template: str
    bos_token: str = ""
    eos_token: str = ""


def read_text_source(model_dir: Path) -> TextSource:
    """Read a model folder's tokenizer and chat template. Raises: CheckpointError."""
    path = model_dir / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"expected a file tokenizer.json in {model_dir}, found none")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for any malformed file
        raise CheckpointError(f"{path}: expected a tokenizer, found {error}") from None
    config_path = model_dir / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}

    def spelled(key: str) -> str:
        value = config.get(key) or ""
        return str(value["content"] if isinstance(value, dict) else value)

    template = read_template(model_dir)
    if template is None:
        found = config.get("chat_template") or ""
        if isinstance(found, list):  # several by name
            found = next((t["template"] for t in found if t["name"] == "default"), "")
        template = str(found)
    return TextSource(tokenizer, template, spelled("bos_token"), spelled("eos_token"))


def read_template(folder: Path) -> str | None:
    """The chat template that lies in a file of its own, if there is one."""
    path = folder / TEMPLATE_FILE
    return path.read_text(encoding="utf-8") if path.is_file() else None


class Text:
    """Tokenizer and chat template of one checkpoint."""

    @classmethod
    def read(cls, model_dir: Path, eos_ids: Sequence[int] = ()) -> Self:
        """Read those of a model folder. Raises: CheckpointError, TemplateError."""
        return cls(read_text_source(model_dir), eos_ids)

    def __init__(self, source: TextSource, eos_ids: Sequence[int] = ()) -> None:
        """Raises: TemplateError."""
        self.tokenizer, self.template_source = source.tokenizer, source.template
        self._spelled = {"bos_token": source.bos_token, "eos_token": source.eos_token}
        self.vocab_size = self.tokenizer.get_vocab_size(with_added_tokens=True)
        added = self.tokenizer.get_added_tokens_decoder()
        self.special = {i: token.content for i, token in added.items() if token.special}
        self._template = self._compile(self.template_source)
        self._calls = CallHistory()  # to try what the template makes of calls
        if self.takes_tools:
            self._calls = CallHistory.of(
                self.template_source, lambda messages: self.render(messages, (), False)
            )
        # Not only those that are special: tool calls and their results are often marked by others.
        markers = [token.content for token in added.values() if not WORDS.fullmatch(token.content)]
        spelled = sorted(map(re.escape, (*markers, _CUT)), key=len, reverse=True)
        self._marker_pattern = re.compile("|".join(spelled))
        self._folds = any(token.normalized for token in added.values())  # before it looks for them
        # Added tokens are taken out of a text before all else, longest first. What stands on
        # either side is encoded by itself, unless the token also looks at its neighbours.
        apart = [token for token in added.values() if token.content and not token.normalized]
        self._seams = {t.content for t in apart if not (t.lstrip or t.rstrip or t.single_word)}
        spelled = sorted((re.escape(token.content) for token in apart), key=len, reverse=True)
        self._seam_pattern = re.compile("|".join(spelled) or r"(?!)")
        self._stretches = Stretches(self._encode_plainly)
        self._n_most: int | None = None  # characters of a prompt
        self.end_of_turn_id = self._find_end_of_turn(eos_ids)
        # Some templates end a turn with plain text ("[/INST]"); a reply may well contain that.
        self.stop_ids = frozenset({*eos_ids, *({self.end_of_turn_id} & set(self.special))})

    def _compile(self, source: str) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"expected a chat template in Jinja, found: {error}") from None

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template writes the tools it is given."""
        return "tools" in self.template_source

    def render(
        self, messages: Sequence[Message], tools: Sequence[Message], add_generation_prompt: bool
    ) -> str:
        """The conversation as the template writes it. Raises: TemplateError."""
        if not self.template_source:
            raise TemplateError("expected a chat template in the model folder, found none")
        try:
            offered = list(tools) or None
            return self._template.render(
                messages=self._calls.fitted(messages, tools),
                tools=offered,
                xml_tools=offered,  # SmolLM3's name for them
                add_generation_prompt=add_generation_prompt,
                enable_thinking=False,  # a caller cannot wait for hidden reasoning
                **self._spelled,
            )
        except (jinja2.TemplateError, *MISFITS) as error:
            found = f"expected messages the chat template takes, found: {error}"
            raise TemplateError(found) from None

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        open_user: str | None = None,
        add_generation_prompt: bool = False,
    ) -> list[int]:
        """Token ids of a conversation.

        messages: as Hugging Face chat templates take them, "arguments" of tool calls as dicts.
        open_user: what the caller has said so far; appended as a user turn without its end.
        Text that spells a marker (`WORDS`) is stripped from contents, calls and tools: a caller
        cannot end their own turn by saying so, nor a document open a tool's result.
        Raises: TemplateError.
        """
        if open_user is not None:
            return self.encode(self.render_open(messages, tools, open_user))
        clean = [self._clean(message) for message in messages]
        return self.encode(self.render(clean, self._clean(list(tools)), add_generation_prompt))

    def render_open(
        self, messages: Sequence[Message], tools: Sequence[Message], open_user: str
    ) -> str:
        """The conversation up to where the caller's words stop. Raises: TemplateError."""
        turn = {"role": "user", "content": self.spoken(open_user) + _CUT}
        turns = [*(self._clean(message) for message in messages), turn]
        rendered = self.render(turns, self._clean(list(tools)), False)
        before, found, _ = rendered.rpartition(_CUT)
        if not found:
            raise TemplateError("expected the chat template to write user content, found none")
        return before

    def spoken(self, words: str) -> str:
        """A caller's words so far as a template is given them."""
        return self._without_markers(words).rstrip()

    def bound(self, context_length: int) -> None:
        """Refuse from now on to encode what cannot fit this context."""
        self._n_most = MOST_CHARACTERS_A_TOKEN * context_length

    def encode(self, text: str) -> list[int]:
        """Token ids of text in which special tokens are spelled out.

        A conversation is encoded again with every partial, and only its end is new: stretches
        between special tokens are remembered.
        Raises: PromptTooLong, by the text's length alone.
        """
        self.check_length(len(text))
        ids: list[int] = []
        start = 0
        for match in self._seam_pattern.finditer(text):
            if match.group() in self._seams and match.start() > start:
                ids += self._stretches.encode(text[start : match.start()])
                start = match.start()
        ids += self._stretches.encode(text[start:])
        return ids

    def check_length(self, n_characters: int) -> None:
        """Raises: PromptTooLong."""
        if self._n_most is not None and n_characters > self._n_most:
            raise PromptTooLong(
                f"expected a prompt of at most {self._n_most} characters, found {n_characters}"
            )

    def last_seam(self, text: str) -> int:
        """Find the last special token whose following text cannot change the tokens before it."""
        seams = (m.start() for m in self._seam_pattern.finditer(text) if m.group() in self._seams)
        return max(seams, default=0)

    def _encode_plainly(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _clean(self, value: Any) -> Any:
        """A message, a tool, or a part of one, with every text in it stripped of markers."""
        if isinstance(value, str):
            return self._without_markers(value)
        if isinstance(value, dict):
            return {self._clean(name): self._clean(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self._clean(part) for part in value]
        return value

    def _without_markers(self, text: str) -> str:
        """Also without those that two halves make once what stood between them is gone."""
        while self._marker_pattern.search(text):
            text = self._marker_pattern.sub("", text)
        if self._folds and self.tokenizer.normalizer is not None:
            folded = str(self.tokenizer.normalizer.normalize_str(text))
            if self._marker_pattern.search(folded):  # spelled in characters that are folded to it
                return self._without_markers(folded)
        return text

    def _find_end_of_turn(self, eos_ids: Sequence[int]) -> int:
        """The token the template writes right after user content."""
        fallback = eos_ids[0] if eos_ids else NO_TOKEN
        if not self.template_source:
            return fallback
        rendered = self.render([{"role": "user", "content": _CUT}], (), False)
        ids = self.encode(rendered.rpartition(_CUT)[2])
        return ids[0] if ids else fallback


class Stretches:
    """Token ids of stretches of text, the latest remembered up to a number of bytes."""

    def __init__(
        self, encode: Callable[[str], Sequence[int]], n_most_bytes: int = MAX_REMEMBERED_BYTES
    ) -> None:
        self._encode = encode
        self._n_most_bytes = n_most_bytes
        self._ids = OrderedDict[str, "array[int]"]()
        self.n_bytes = 0

    def encode(self, stretch: str) -> array[int]:
        ids = self._ids.get(stretch)
        if ids is not None:
            self._ids.move_to_end(stretch)
            return ids
        ids = array("I", self._encode(stretch))
        self._ids[stretch] = ids
        self.n_bytes += _n_bytes(stretch, ids)
        while self.n_bytes > self._n_most_bytes:
            self.n_bytes -= _n_bytes(*self._ids.popitem(last=False))
        return ids


def _n_bytes(stretch: str, ids: array[int]) -> int:
    return sys.getsizeof(stretch) + sys.getsizeof(ids)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
