"""A response as it was asked for: the reading of ``response.create``.

Owns ``ResponseRequest``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from voiceloop.backends import Tool
from voiceloop.errors import InvalidRequest, expected
from voiceloop.realtime.items import Item, n_characters_of, parse_item
from voiceloop.realtime.session_update import (
    read_effort,
    read_flag,
    read_format,
    read_max_tokens,
    read_modalities,
    read_temperature,
    read_text,
    read_tool_choice,
    read_tools,
    read_voice,
)
from voiceloop.realtime.settings import AudioFormat, Json, Modality

MAX_INPUT_ITEMS = 4096  # as many as a conversation may have
MAX_METADATA_KEYS = 16
MAX_METADATA_KEY_CHARS = 64
MAX_METADATA_VALUE_CHARS = 512


class ResponseRequest(msgspec.Struct, frozen=True):
    """A response as it was asked for; None means the session's setting.

    ``input`` (item references already resolved) replaces the conversation as the context.
    ``conversation`` "none": out of band, runs beside the default one, leaves no trace in it.
    """

    instructions: str | None = None
    output_modalities: tuple[Modality, ...] | None = None
    output_format: AudioFormat | None = None
    voice: str | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: str | Json | None = None
    max_output_tokens: int | Literal["inf"] | None = None
    temperature: float | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    metadata: dict[str, str] | None = None
    conversation: Literal["auto", "none"] = "auto"
    input: tuple[Item, ...] | None = None


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "instructions": read_text,
    "output_modalities": read_modalities,
    "tools": read_tools,
    "tool_choice": read_tool_choice,
    "max_output_tokens": read_max_tokens,
    "temperature": read_temperature,
    "parallel_tool_calls": read_flag,
}


def parse_request(
    raw: Json | None,
    *,
    new_id: Callable[[str], str],
    find: Callable[[str], Item | None],
    n_most_characters: int,
) -> ResponseRequest:
    """Read the ``response`` of ``response.create``; nulls are absent, unknown keys are dropped.

    Args:
        find: looks up an item of the conversation, for item references.
        n_most_characters: of the input; a reference counts as what it refers to, each time.

    Raises:
        InvalidRequest: with the path of the wrong value as ``param``.
    """
    present = {key: value for key, value in (raw or {}).items() if value is not None}
    fields: Json = {
        key: read(present[key], f"response.{key}")
        for key, read in _READERS.items()
        if key in present
    }
    if "reasoning" in present:
        fields["reasoning_effort"] = read_effort(present["reasoning"], "response.reasoning")
    audio = present.get("audio", {})
    output = audio.get("output") if isinstance(audio, dict) else audio
    if not isinstance(output, dict | None):
        raise expected("response.audio", "an object", audio)
    if output and output.get("format") is not None:
        fields["output_format"] = read_format(output["format"], "response.audio.output.format")
    if output and output.get("voice") is not None:
        fields["voice"] = read_voice(output["voice"], "response.audio.output.voice")
    if "metadata" in present:
        fields["metadata"] = _read_metadata(present["metadata"])
    conversation = present.get("conversation", "auto")
    if conversation not in ("auto", "none"):
        raise expected("response.conversation", "auto or none", conversation)
    if "input" in present:
        fields["input"] = _read_input(present["input"], new_id, find, n_most_characters)
    return ResponseRequest(conversation=conversation, **fields)


def _read_metadata(value: Any) -> dict[str, str]:
    where = "response.metadata"
    if not isinstance(value, dict) or len(value) > MAX_METADATA_KEYS:
        raise expected(where, f"an object of at most {MAX_METADATA_KEYS} keys", value)
    for key, text in value.items():
        if len(key) > MAX_METADATA_KEY_CHARS:
            raise expected(where, f"keys of at most {MAX_METADATA_KEY_CHARS} characters", key)
        if not isinstance(text, str) or len(text) > MAX_METADATA_VALUE_CHARS:
            raise expected(
                f"{where}.{key}", f"a string of at most {MAX_METADATA_VALUE_CHARS} characters", text
            )
    return value


def _read_input(
    value: Any,
    new_id: Callable[[str], str],
    find: Callable[[str], Item | None],
    n_most_characters: int,
) -> tuple[Item, ...]:
    if not isinstance(value, list) or len(value) > MAX_INPUT_ITEMS:
        raise expected("response.input", f"a list of at most {MAX_INPUT_ITEMS} items", value)
    items: list[Item] = []
    n_characters = 0
    for index, raw in enumerate(value):
        if isinstance(raw, dict) and raw.get("type") == "item_reference":
            item = _referred(raw.get("id"), f"response.input[{index}].id", find)
        else:
            item = parse_item(raw, new_id)
        n_characters += n_characters_of(item)
        if n_characters > n_most_characters:
            raise InvalidRequest(
                f"response.input: expected at most {n_most_characters} characters, references "
                f"included, found more by item {index}",
                param="response.input",
                code="context_length_exceeded",
            )
        items.append(item)
    return tuple(items)


def _referred(item_id: Any, where: str, find: Callable[[str], Item | None]) -> Item:
    found = find(item_id) if isinstance(item_id, str) else None
    if found is None:
        raise expected(where, "the id of an item of the conversation", item_id)
    return found
