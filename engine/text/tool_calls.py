"""Owns the recognition of tool calls in a reply, in the notation of the checkpoint's template.

The parser is fed text in pieces of any size and gives the same results for every way of cutting
it: plain text, held back only where it may be the start of a call, and whole calls.
"""

import json
from dataclasses import dataclass
from typing import Any

from ..types import EngineError
from .detokenizer import suffix_that_starts


class MalformedToolCall(EngineError):
    """The model began a tool call and did not write one."""


@dataclass(frozen=True, slots=True)
class Notation:
    """What stands before and after the JSON of a call; close "" means until the reply's end."""

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
    """Splits a reply into text and calls."""

    def __init__(self, notation: Notation | None) -> None:
        self._notation = notation
        self._held = ""
        self._inside = False
        self._after_call = False

    def feed(self, piece: str) -> list[str | ParsedCall]:
        """Raises: MalformedToolCall."""
        if self._notation is None:
            return [piece] if piece else []
        self._held += piece
        results: list[str | ParsedCall] = []
        while self._advance(self._notation, results):
            pass
        return results

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
        """What the end of the reply settles, or its limit: a call not closed by then is none.

        Raises: MalformedToolCall.
        """
        held, self._held = self._held, ""
        if self._inside:
            closes = self._notation is not None and self._notation.close
            if is_cut_off or (closes and not held.strip()):
                return []
            return list(parse_calls(held))
        return [held] if held else []


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
