"""One session under test: a socket, everything that came over it, and waiting with a deadline.

Owns the reading of frames as events. What a check does not get in time, or gets as an error it did
not ask for, ends the check with a sentence that says so.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from clients.conformance.check import Failed, Json, Target
from clients.connection import authorization, realtime_url
from clients.errors import ConnectionFailed
from clients.recording import Samples

OPEN_TIMEOUT_S = 10.0
MAX_FRAME_BYTES = 16 * 1024 * 1024  # more than any client takes: too big a frame is a finding


class Line:
    """``events`` holds all that was read so far, in order."""

    def __init__(self, socket: ClientConnection, target: Target) -> None:
        self.socket = socket
        self.target = target
        self.events: list[Json] = []
        self.n_bytes: list[int] = []  # of each frame, beside ``events``
        self._ids = itertools.count(1)

    # --- to the server ---

    async def send(self, kind: str, **fields: Any) -> str:
        """Send a client event; returns the event_id given to it."""
        event_id = f"check_{next(self._ids)}"
        await self.send_frame(json.dumps({"type": kind, "event_id": event_id, **fields}))
        return event_id

    async def send_frame(self, frame: str | bytes) -> None:
        """Send a frame as it is."""
        try:
            await self.socket.send(frame)
        except ConnectionClosed as error:
            raise Failed(f"expected an open connection, found it closed: {error}") from None

    async def append_audio(self, samples: Samples) -> None:
        """Send caller audio, mono int16 at 24 kHz, as one event."""
        audio = base64.b64encode(samples.astype("<i2").tobytes()).decode("ascii")
        await self.send("input_audio_buffer.append", audio=audio)

    # --- from the server ---

    async def next(self, waiting_for: str = "an event") -> Json:
        """The next event. Raises: Failed: none in time, or no event of the protocol."""
        try:
            async with asyncio.timeout(self.target.timeout_s):
                frame = await self.socket.recv()
        except TimeoutError:
            raise Failed(
                f"expected {waiting_for} within {self.target.timeout_s:g} s, "
                f"found none ({self._lately()})"
            ) from None
        except ConnectionClosed as error:
            raise Failed(f"expected {waiting_for}, found the connection closed: {error}") from None
        return self._take(frame)

    async def until(self, *kinds: str, where: Json | None = None) -> Json:
        """The next event of these types (with these top-level fields); others are kept and passed.

        Raises: Failed: not in time, or an ``error`` came that was not waited for.
        """
        name = " or ".join(kinds)
        while True:
            event = await self.next(name)
            if event["type"] in kinds and _has(event, where):
                return event
            if event["type"] == "error":
                raise Failed(f"expected {name}, found the error {error_text(event)}")

    async def error(self, after: str) -> Json:
        """The ``error`` of the next error event. Raises: Failed: none in time."""
        while (event := await self.next(f"an error event after {after}"))["type"] != "error":
            pass
        error = event.get("error")
        if not isinstance(error, dict):
            raise Failed(f"expected error.error to be an object, found {type(error).__name__}")
        return error

    async def settle(self) -> list[Json]:
        """Listen for ``quiet_s``; returns what came. For rules of the form "nothing follows"."""
        start = len(self.events)
        try:
            async with asyncio.timeout(self.target.quiet_s):
                while True:
                    self._take(await self.socket.recv())
        except TimeoutError:
            return self.events[start:]
        except ConnectionClosed as error:
            raise Failed(f"expected the session to go on, found it closed: {error}") from None

    async def update(self, **session: Any) -> Json:
        """``session.update``; returns the session that answers it."""
        await self.send("session.update", session={"type": "realtime", **session})
        event = await self.until("session.updated")
        found = event.get("session")
        if not isinstance(found, dict):
            raise Failed("expected the session in session.updated, found none")
        return found

    async def is_alive(self) -> None:
        """The session goes on: it answers an update. Raises: Failed."""
        await self.update()

    def types(self, start: int = 0) -> list[str]:
        return [str(event["type"]) for event in self.events[start:]]

    def _take(self, frame: str | bytes) -> Json:
        try:
            event = json.loads(frame) if isinstance(frame, str) else None
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise Failed("expected a text frame with a JSON event, found another frame")
        self.events.append(event)
        self.n_bytes.append(len(frame))
        return event

    def _lately(self) -> str:
        kinds = self.types()[-3:]
        return "the last events were " + ", ".join(kinds) if kinds else "no event came at all"


def _has(event: Json, where: Json | None) -> bool:
    return all(event.get(key) == value for key, value in (where or {}).items())


def error_text(event: Json) -> str:
    error = event.get("error")
    if not isinstance(error, dict):
        return "without a body"
    return f"{error.get('code')}: {error.get('message')}"


def key_headers(target: Target) -> dict[str, str]:
    return authorization(target.key)


@asynccontextmanager
async def opened(
    target: Target,
    *,
    query: dict[str, str] | None = None,
    headers: dict[str, str] | None = None,
    subprotocols: Sequence[str] | None = None,
) -> AsyncIterator[Line]:
    """A connection. ``query`` replaces ``?model=``; ``headers`` replace the key's header.

    Raises:
        Failed: the server refused it.
    """
    url = address(target, {"model": target.model} if query is None else query)
    options: dict[str, Any] = {
        "additional_headers": key_headers(target) if headers is None else headers,
        "subprotocols": subprotocols,
        "compression": None,
        "max_size": MAX_FRAME_BYTES,
        "max_queue": None,  # a check that looks elsewhere for a moment must not slow the server
        "open_timeout": max(OPEN_TIMEOUT_S, target.timeout_s),
    }
    try:
        socket = await _connected(url, options, target.timeout_s)
    except InvalidStatus as error:
        raise Failed(
            f"expected the connection to be accepted, found HTTP {error.response.status_code}"
        ) from None
    except (OSError, InvalidHandshake, TimeoutError, UnicodeError) as error:
        raise Failed(f"expected the connection to be accepted, found {error}") from None
    async with socket:
        yield Line(socket, target)


async def _connected(url: str, options: dict[str, Any], timeout_s: float) -> ClientConnection:
    """Connect; a server that is full for the moment (503 and Retry-After) is asked again."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        try:
            return await connect(url, **options)
        except InvalidStatus as error:
            retry_after = error.response.headers.get("Retry-After", "")
            wait_s = float(retry_after) if retry_after.isdigit() else timeout_s
            if error.response.status_code != 503 or time.monotonic() + wait_s > give_up_at:
                raise
            await asyncio.sleep(wait_s)


@asynccontextmanager
async def session(target: Target, **settings: Any) -> AsyncIterator[Line]:
    """A connection whose session is announced and has these settings."""
    async with opened(target) as line:
        await line.until("session.created")
        await line.update(**{"instructions": "You are being tested. Be brief.", **settings})
        for _ in range(line.types().count("response.created")):  # it greeted after all
            await line.until("response.done")
        yield line


def address(target: Target, query: dict[str, str]) -> str:
    """The session's URL with this query in addition to its own. Raises: ConnectionFailed."""
    parts = urlsplit(realtime_url(target.url))
    merged = {**dict(parse_qsl(parts.query)), **query}
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(merged), ""))


def http_address(target: Target, path: str) -> str:
    """``path`` below the session's own, over HTTP. Raises: ConnectionFailed."""
    parts = urlsplit(realtime_url(target.url))
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + path, parts.query, ""))


async def check_reachable(target: Target) -> None:
    """One connection, before any check: a wrong address is not forty failed checks.

    Raises:
        ConnectionFailed: nobody answers there, or not as a Realtime server.
    """
    try:
        async with opened(target):
            pass
    except Failed as failed:
        raise ConnectionFailed(f"{target.url}: {failed}") from None
