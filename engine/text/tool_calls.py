"""Owns the recognition of tool calls in a reply, in the notation of the checkpoint's template.

The parser is fed text in pieces of any size and gives the same results for every way of cutting
it: plain text, held back only where it may be the start of a call, and whole calls. Models also
begin a call as plain text, without the opening mark of their template; that is held back to be
written anew, or read as it is.
"""

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..types import EngineError
from .detokenizer import suffix_that_starts


class MalformedToolCall(EngineError):
    """The model began a tool call and did not write one."""


@dataclass(frozen=True, slots=True)
class Notation:
    """The marks before and after the JSON of a call; close "" means until the reply's end.

    arguments_mark: between a call's name and its arguments, where these alone are JSON and every
    call has the opening mark. id_mark: between the name and an id before that mark, if any.
    """

    open: str
    close: str = ""
    keep_open: bool = False  # the opening mark is part of the JSON
    arguments_key: str = "arguments"
    is_list: bool = False  # calls are written as one JSON array
    arguments_mark: str = ""
    id_mark: str = ""

    @property
    def marks(self) -> frozenset[str]:
        """Return what of a reply is no text, and has to be seen to find the calls in it."""
        return frozenset({self.open, self.close, self.arguments_mark, self.id_mark} - {""})


BARE_JSON = Notation('{"name"', keep_open=True, arguments_key="parameters")

# By the mark that betrays it in the chat template, most specific first.
NOTATIONS: dict[str, Notation] = {
    "<tool_call>": Notation("<tool_call>", "</tool_call>"),  # Hermes, Qwen, the embedded agent
    "[ARGS]": Notation(  # Mistral Small 3.2 and later
        "[TOOL_CALLS]", arguments_mark="[ARGS]", id_mark="[CALL_ID]"
    ),
    "[TOOL_CALLS]": Notation("[TOOL_CALLS]", is_list=True),  # Mistral before
    "<|tool|>": Notation("<|tool_call|>", "<|/tool_call|>", is_list=True),  # Phi-4-mini
    "<|tool_call|>": Notation("<|tool_call|>", is_list=True),  # Granite 3
    "<|python_tag|>": BARE_JSON,  # Llama 3.1
    '"parameters"': BARE_JSON,
}


# With one of these a JSON text that opens a reply is a call, and no answer in JSON.
CALL_KEYS = frozenset({"name", "function", "tool", "tool_name", "arguments", "parameters"})
MAX_KEY_CHARACTERS = max(map(len, CALL_KEYS))
FENCE = "```"
# A call's result, as templates write it: a reply that begins so makes one up instead of calling.
RESULT = "<tool_response>"


def begins_bare_call(text: str) -> bool | None:
    """Whether a reply that begins like this is a call without its mark; None: not known yet.

    Seen: the JSON alone, in braces doubled as a template's source shows them, in a list, between
    the fences of a code block, and its result in place of the call.
    """
    rest = text.lstrip()
    if rest and RESULT.startswith(rest[: len(RESULT)]):
        return True if len(rest) >= len(RESULT) else None
    if FENCE.startswith(rest[: len(FENCE)]):
        if len(rest) <= len(FENCE):
            return None
        rest = rest[len(FENCE) :].lstrip(string.ascii_lowercase).lstrip()
    if not rest:
        return None
    key = rest.lstrip("[{ \t\r\n")
    if key == rest or (key and key[0] != '"'):
        return False
    key, quote, _ = key[1:].partition('"')
    if not quote:
        return None if len(key) <= MAX_KEY_CHARACTERS else False
    return key in CALL_KEYS


def notation_of(template_source: str) -> Notation | None:
    """The notation a chat template teaches, if it knows tools at all."""
    for mark, notation in NOTATIONS.items():
        if mark in template_source:
            has_id = notation.id_mark in template_source
            return notation if has_id else replace(notation, id_mark="")
    return None


def write_calls(functions: Sequence[dict[str, Any]], notation: Notation) -> str:
    """Calls as a model writes them. functions: of each its name and arguments."""
    if notation.arguments_mark:
        return "".join(
            f"{notation.open}{one['name']}{notation.arguments_mark}{_written(one['arguments'])}"
            for one in functions
        )
    calls = [
        _written({"name": one["name"], notation.arguments_key: one["arguments"]})
        for one in functions
    ]
    if notation.is_list:
        calls = [f"[{', '.join(calls)}]"]
    opening = "" if notation.keep_open else notation.open
    return "".join(f"{opening}{call}{notation.close}" for call in calls)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class ParsedCall:
    name: str
    arguments_json: str


class ToolCallParser:
    """Splits a reply into text and calls. holds_bare: also one that begins without the mark."""

    def __init__(self, notation: Notation | None, *, holds_bare: bool = False) -> None:
        self._notation = notation
        # Whether the reply begins with a bare call; None while that is not known.
        self._is_bare: bool | None = None if holds_bare else False
        self._held = ""
        self._inside = False
        self._after_call = False

    def feed(self, piece: str) -> list[str | ParsedCall]:
        """Raises: MalformedToolCall."""
        if self._notation is None:
            return [piece] if piece else []
        self._held += piece
        if self._is_bare is None:
            self._is_bare = begins_bare_call(self._held)
        if self._is_bare is not False:
            return []
        results: list[str | ParsedCall] = []
        while self._advance(self._notation, results):
            pass
        return results

    @property
    def is_bare(self) -> bool:
        """The reply is a call without its mark; nothing of it has been given out."""
        return self._is_bare is True

    def _advance(self, notation: Notation, results: list[str | ParsedCall]) -> bool:
        """One step towards the end of the held text; False when more text is needed."""
        if self._inside:
            mark = notation.close
            place = self._held.find(mark) if mark else -1
            if place < 0:
                return False
            results += self._parse(self._held[:place])
            self._held = self._held[place + len(mark) :]
            self._inside, self._after_call = False, True
            return True
        if self._after_call:  # line breaks between calls are notation, not speech
            self._held = self._held.lstrip()
            self._after_call = not self._held
        mark = notation.open
        place = self._held.find(mark)
        n_held = suffix_that_starts(self._held, mark) if place < 0 else 0
        before = self._held[: place if place >= 0 else len(self._held) - n_held]
        if before:
            results.append(before)
        self._held = self._held[len(before) :]
        if place < 0:
            return False
        self._held = self._held if notation.keep_open else self._held[len(mark) :]
        self._inside = True
        return True

    def _parse(self, text: str) -> list[ParsedCall]:
        if self._notation is not None and self._notation.arguments_mark:
            return parse_named_calls(text, self._notation)
        return parse_calls(text)

    def finish(self, *, is_cut_off: bool = False) -> list[str | ParsedCall]:
        """Settle what is open when the reply ends: a call that is not closed by then is none.

        Raises: MalformedToolCall.
        """
        held, self._held = self._held, ""
        if self._is_bare:
            return [] if is_cut_off else list(parse_bare_call(held))
        if self._inside:
            closes = self._notation is not None and self._notation.close
            if is_cut_off or (closes and not held.strip()):
                return []
            return list(self._parse(held))
        return [held] if held else []


def parse_bare_call(text: str) -> list[ParsedCall]:
    """A whole reply that is a call without its mark. Raises: MalformedToolCall."""
    body = text.strip().removeprefix(FENCE).removesuffix(FENCE).strip(string.ascii_lowercase)
    body = body.strip()
    if body.startswith("{{"):
        body = body[1:-1] if body.count("{{") == 1 else body.replace("{{", "{").replace("}}", "}")
    return parse_calls(body)


def parse_calls(text: str) -> list[ParsedCall]:
    """One JSON object, an array of them, or several separated by ";".

    Raises: MalformedToolCall.
    """
    decoder, values, rest = json.JSONDecoder(), list[Any](), text.strip()
    try:
        while rest:
            value, end = decoder.raw_decode(rest)
            values += value if isinstance(value, list) else [value]
            rest = rest[end:].lstrip(" ;\n\t\r")
        return [_parse_call(value) for value in values]
    except json.JSONDecodeError as error:
        raise MalformedToolCall(
            f"expected a tool call as JSON, found at character {error.pos}: {error.msg}"
        ) from None
    except RecursionError:
        raise MalformedToolCall("expected a tool call as JSON, found it nested too deep") from None


def parse_named_calls(text: str, notation: Notation) -> list[ParsedCall]:
    """NAME[ARGS]{...}, with an id behind the name or none; several have the opening mark between.

    Raises: MalformedToolCall.
    """
    calls = []
    for written in filter(str.strip, text.split(notation.open)):
        name, found, arguments = written.partition(notation.arguments_mark)
        if notation.id_mark:
            name = name.partition(notation.id_mark)[0]
        if not found or not name.strip():
            raise MalformedToolCall(
                f"expected a name and arguments with {notation.arguments_mark} between, found none"
            )
        try:
            calls.append(_parse_call({"name": name.strip(), "arguments": json.loads(arguments)}))
        except (json.JSONDecodeError, RecursionError):
            raise MalformedToolCall(
                "expected a tool call's arguments as JSON, found other text"
            ) from None
    return calls


def _parse_call(value: Any) -> ParsedCall:
    if isinstance(value, dict) and isinstance(value.get("name"), str):
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):  # some models write the arguments as quoted JSON
            try:
                arguments = json.loads(arguments)
            except (json.JSONDecodeError, RecursionError):
                arguments = None
        if isinstance(arguments, dict):
            return ParsedCall(value["name"], json.dumps(arguments, ensure_ascii=False))
    raise MalformedToolCall("expected a tool call of a name and arguments, found other JSON")
