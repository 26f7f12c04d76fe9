"""Owns the recognition of tool calls in a reply, in the notation of the checkpoint's template.

The parser is fed text in pieces of any size and gives the same results for every way of cutting
it: plain text, held back only where it may be the start of a call, and whole calls. Models also
begin a call as plain text, without the opening mark of their template; that is held back to be
written anew, or read as it is.
"""

import json
import string
from dataclasses import dataclass
from typing import Any

from ..types import EngineError
from .detokenizer import suffix_that_starts


class MalformedToolCall(EngineError):
    """The model began a tool call and did not write one."""


@dataclass(frozen=True, slots=True)
class Notation:
    """The marks before and after the JSON of a call; close "" means until the reply's end."""

    open: str
    close: str = ""
    keep_open: bool = False  # the opening mark is part of the JSON
    arguments_key: str = "arguments"
    is_list: bool = False  # calls are written as one JSON array


BARE_JSON = Notation('{"name"', keep_open=True, arguments_key="parameters")

# By the mark that betrays it in the chat template, most specific first.
NOTATIONS: dict[str, Notation] = {
    "<tool_call>": Notation("<tool_call>", "</tool_call>"),  # Hermes, Qwen, the embedded agent
    "[TOOL_CALLS]": Notation("[TOOL_CALLS]", is_list=True),  # Mistral
    "<|python_tag|>": BARE_JSON,  # Llama 3.1
    '"parameters"': BARE_JSON,
}


# With one of these a JSON text that opens a reply is a call, and no answer in JSON.
CALL_KEYS = frozenset({"name", "function", "tool", "tool_name", "arguments", "parameters"})
MAX_KEY_CHARACTERS = max(map(len, CALL_KEYS))
FENCE = "```"


def begins_bare_call(text: str) -> bool | None:
    """Whether a reply that begins like this is a call without its mark; None: not known yet.

    Seen: the JSON alone, in braces doubled as a template's source shows them, in a list, and
    between the fences of a code block.
    """
    rest = text.lstrip()
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
            return notation
    return None


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
            results += parse_calls(self._held[:place])
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
            return list(parse_calls(held))
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
