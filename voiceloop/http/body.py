"""The bodies of requests: JSON objects within their bounds, each checked against its struct.

The structs stand beside the routes that take them; ``/openapi.json`` tells the same structs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from voiceloop.errors import FrameTooLarge, InvalidRequest, expected
from voiceloop.realtime.client_events import from_validation, parse_frame
from voiceloop.realtime.settings import Json

BodyT = TypeVar("BodyT", bound=msgspec.Struct)


async def pieces_of(
    request: Request, most_bytes: int, param: str | None = None
) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises: FrameTooLarge, of this field: it is longer than it may be."""
    n_bytes = 0
    async for piece in request.stream():
        n_bytes += len(piece)
        if n_bytes > most_bytes:
            told = f"expected a body of at most {most_bytes} bytes, found more"
            raise FrameTooLarge(told, param=param)
        yield piece


async def read_body(request: Request, most_bytes: int) -> bytes:
    """Raises: FrameTooLarge."""
    return b"".join([piece async for piece in pieces_of(request, most_bytes)])


async def read_json(request: Request, most_bytes: int) -> Json:
    """The JSON object of a request; nothing counts as an empty one.

    Raises: InvalidRequest, FrameTooLarge.
    """
    body = await read_body(request, most_bytes)
    if not body.strip():
        return {}
    try:
        return parse_frame(body.decode("utf-8"))
    except UnicodeDecodeError:
        raise InvalidRequest("expected UTF-8 JSON, found other bytes") from None


def checked(raw: Json, kind: type[BodyT], private: str = "") -> BodyT:
    """The object as this struct; of its fields null is as if it were not there.

    private: a field of which no value is told. Raises: InvalidRequest; ``param`` is the path of
    what is wrong.
    """
    given = {name: value for name, value in raw.items() if value is not None}
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        if private and f"$.{private}" in str(error):
            wanted = "what /openapi.json says of it"
            raise InvalidRequest(
                f"{private}: expected {wanted}, found other", param=private
            ) from None
        told = from_validation(error, "", "the body")
        if told.param is None or told.wire_code == "missing_required_parameter":
            raise told from None
        words = str(error).partition(" - at `")[0].replace("`", "")
        wanted, _, _ = words.removeprefix("Expected ").partition(", got ")
        if words.startswith("Invalid"):  # of a choice the error names what was found alone
            wanted = "one of the values that /openapi.json names"
        raise expected(told.param, wanted, _found(given, told.param)) from None


def _found(raw: Any, path: str) -> Any:
    """What stands at a path as ``messages[0].role``."""
    for name in re.findall(r"[^.\[\]]+", path):
        raw = raw[int(name)] if isinstance(raw, list) else raw.get(name)
    return raw
