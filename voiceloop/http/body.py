"""The bodies of requests: JSON objects within their bounds, each checked against its struct.

The structs stand beside the routes that take them; ``/openapi.json`` tells the same structs.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
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
        words, _, path = str(error).partition(" - at `")
        wanted, _, _ = words.replace("`", "").removeprefix("Expected ").partition(", got ")
        if private and f"$.{private}" in path:
            raise InvalidRequest(
                f"{private}: expected {wanted}, found another", param=private
            ) from None
        told = from_validation(error, "", "the body")
        if told.param is None or told.wire_code == "missing_required_parameter":
            raise told from None
        names = re.findall(r"[^.\[\]]+", told.param)  # of a path as ``messages[0].role``
        if wanted.startswith("Invalid"):  # of a choice the error names what was found alone
            wanted = ", ".join(_choices(kind, names))
        raise expected(told.param, wanted, _found(given, names)) from None


def _found(raw: Any, names: Sequence[str]) -> Any:
    for name in names:
        raw = raw[int(name)] if isinstance(raw, list) else raw.get(name)
    return raw


def _choices(kind: type[msgspec.Struct], names: Sequence[str]) -> list[str]:
    """The values that may stand there."""
    (form,), forms = msgspec.json.schema_components((kind,))
    at = _plain(form, forms)
    for name in names:
        below = [one.get("items") or one.get("properties", {}).get(name) for one in at]
        at = [plain for one in below if one is not None for plain in _plain(one, forms)]
    return [str(value) for one in at for value in one.get("enum", ())]


def _plain(form: Json, forms: Json) -> list[Json]:
    """The schemas that one stands for, without references."""
    if "$ref" in form:
        return _plain(forms[form["$ref"].rpartition("/")[2]], forms)
    if "anyOf" in form:
        return [plain for one in form["anyOf"] for plain in _plain(one, forms)]
    return [form]
