"""The client's events of the Realtime protocol (GA names) and their strict decoding.

Owns the reading of frames: strict JSON with bounded depth and no duplicate keys, then one typed
message per event. Pure.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from typing import Any

import msgspec

from voiceloop.errors import InvalidRequest

# The largest session there is (128 tools, each a schema of some hundred keys) has a third of it.
MAX_VALUES = 40_000
MAX_CHARACTERS_READ_TWICE = 64 * 1024
FRAME_BYTES = 2 * 1024 * 1024  # of one message from a client; a larger one closes the line
MAX_DEPTH = 64  # a JSON schema of a tool nests some 20 deep; recursion in C ends near 1000

Json = dict[str, Any]


class ClientEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Unknown fields are ignored: clients are newer or older than this server."""

    event_id: str | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    """Changes settings of the session, all of those named or none."""

    session: Json


class AudioAppend(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Sends sound of the caller, base64, in the session's input format."""

    audio: str


class AudioCommit(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """Ends the caller's turn by hand. No response follows by itself."""


class AudioClear(ClientEvent, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Drops sound that is not committed."""


class OutputClear(ClientEvent, frozen=True, kw_only=True, tag="output_audio_buffer.clear"):
    """Stops the sound that the server holds. A WebSocket client holds its own."""


class ItemCreate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Adds an item: a message, or the output of a tool call."""

    item: Json
    previous_item_id: str | None = None


class ItemRetrieve(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.retrieve"):
    """Asks for an item as it stands."""

    item_id: str


class ItemDelete(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Removes an item."""

    item_id: str


class ItemTruncate(ClientEvent, frozen=True, kw_only=True, tag="conversation.item.truncate"):
    """Cuts a reply to what the caller has heard."""

    item_id: str
    content_index: int
    audio_end_ms: int


class ResponseCreate(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    """Asks for a response."""

    response: Json | None = None


class ResponseCancel(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    """Stops a response, the active one if none is named."""

    response_id: str | None = None


class Resume(ClientEvent, frozen=True, kw_only=True, tag="voiceloop.resume"):
    """Goes on with the call that this ticket is of."""

    ticket: str


class Confirm(ClientEvent, frozen=True, kw_only=True, tag="voiceloop.confirm"):
    """Says yes or no to a tool call that the server asked about."""

    call_id: str
    approve: bool


CLIENT_EVENTS: dict[str, type[ClientEvent]] = {
    str(kind.__struct_config__.tag): kind for kind in ClientEvent.__subclasses__()
}


def parse_frame(frame: str | bytes) -> Json:
    """Read one frame as a JSON object, strictly: no NaN, no duplicate keys, bounded shape.

    Brackets are counted before anything is read, those in texts with them: where there are more
    than a frame may have values it is refused. A frame is read once more for its keys where that is
    quick; one that is longer holds a long text or a clip of audio, and of two values for one key
    the last is taken.

    Raises:
        InvalidRequest: with what was expected and what was found.
    """
    if isinstance(frame, bytes):
        raise InvalidRequest("expected a text frame with a JSON event, found a binary frame")
    if frame.count("{") + frame.count("[") > MAX_VALUES:  # before a million of them are made
        raise InvalidRequest(f"expected JSON of at most {MAX_VALUES} values, found more")
    try:
        raw = msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise InvalidRequest(f"expected JSON, found text that is not JSON ({error})") from None
    except RecursionError:
        raise InvalidRequest(_too_deep()) from None
    if not isinstance(raw, dict):
        found = "a list" if isinstance(raw, list) else "a bare value"
        raise InvalidRequest(f"expected a JSON object, found {found}")
    if raw.get("type") != "input_audio_buffer.append":  # the hot path carries one flat string
        _check_shape(raw)
        if len(frame) <= MAX_CHARACTERS_READ_TWICE:
            _check_duplicates(frame)
    return raw


def parse_event(raw: Json) -> ClientEvent:
    """Read a JSON object as a client event.

    Raises:
        InvalidRequest: unknown type (the nearest is named), or a field missing or of a wrong type.
    """
    kind = raw.get("type")
    if not isinstance(kind, str):
        found = "nothing" if kind is None else "another type"
        raise InvalidRequest(f"expected type to be a string, found {found}", param="type")
    event = CLIENT_EVENTS.get(kind)
    if event is None:
        near = difflib.get_close_matches(kind[:80], CLIENT_EVENTS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidRequest(
            f"expected type to be a client event, found {kind[:80]!r}{hint}", param="type"
        )
    try:
        return msgspec.convert(raw, event)
    except msgspec.ValidationError as error:
        raise from_validation(error, "", kind) from None


def from_validation(error: msgspec.ValidationError, prefix: str, owner: str) -> InvalidRequest:
    """Turn msgspec's "Expected `int`, got `str` - at `$.a`" into our error with its ``param``."""
    reason, _, path = str(error).partition(" - at `$")
    param = f"{prefix}{path.rstrip('`')}".lstrip(".")
    missing = "missing required field" in reason
    if missing:
        name = reason.rsplit("`", 2)[1]
        param = f"{param}.{name}".lstrip(".")
        return InvalidRequest(
            f"expected {param} in {owner}, found nothing",
            param=param,
            code="missing_required_parameter",
        )
    words = reason.replace("`", "").replace("Expected", "expected").replace(", got", ", found")
    return InvalidRequest(f"{param or owner}: {words}", param=param or None)


def _check_shape(raw: Any) -> None:
    """Bound the nesting and the number of values, without recursion."""
    level, n_values = [raw], 0
    for _ in range(MAX_DEPTH):
        n_values += sum(map(len, level))
        if n_values > MAX_VALUES:
            raise InvalidRequest(f"expected JSON of at most {MAX_VALUES} values, found more")
        level = [
            child
            for value in level
            for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise InvalidRequest(_too_deep())


def _too_deep() -> str:
    return f"expected JSON nested at most {MAX_DEPTH} deep, found more"


def _check_duplicates(frame: str) -> None:
    """Two values for one key have no meaning that both sides share."""

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        found = dict(pairs)
        if len(found) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            double = next(name for name, n in counts.items() if n > 1)
            raise InvalidRequest(f"expected each key once, found {double[:80]!r} twice")
        return found

    try:
        json.loads(frame, object_pairs_hook=unique)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        raise InvalidRequest("expected JSON, found an oversized number") from None
