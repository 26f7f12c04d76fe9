"""A client's session with somebody's Realtime server: address, settings, sound to its buffer."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import numpy as np
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from audio.resample import Resampler
from voiceloop.errors import BackendError, BackendRefused, BackendTimeout
from voiceloop.remote.socket_stream import CONNECT_S, parse

Event = dict[str, Any]
PART_BYTES = 1 << 20  # of sound that is sent at once: below what a server takes in one message


def address_of(url: str, query: str) -> str:
    """Return where sessions are opened. url: of the service, with or without that path."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    path = path if path.endswith("/realtime") else f"{path}/realtime"
    whole = "&".join(filter(None, (parts.query, query)))
    return urlunsplit((parts.scheme, parts.netloc, path, whole, ""))


def code_of(error: Any) -> str:
    """An error's code: the words beside it may quote what was sent."""
    told = error.get("code") if isinstance(error, dict) else None
    return str(told or "no code")[:64]


async def set_up(
    socket: ClientConnection,
    settings: Event,
    service: str,
    why: Callable[[Event], str] = lambda event: code_of(event.get("error")),
) -> Event:
    """The session as the server tells it, once it has taken these settings. why: what is told of
    the error with which it does not.

    Raises: BackendRefused, BackendTimeout; BackendError where the connection is lost.
    """
    try:
        async with asyncio.timeout(CONNECT_S):
            await socket.send(json.dumps(settings))
            while True:
                event = parse(await socket.recv(), service)
                if event.get("type") == "error":
                    raise BackendRefused(f"{service} refused the session: {why(event)}")
                if event.get("type") in ("session.updated", "transcription_session.updated"):
                    return event.get("session") or {}
    except TimeoutError as error:
        wanted = f"expected a session of {service} in {CONNECT_S:.0f} s, found none"
        raise BackendTimeout(wanted) from error
    except ConnectionClosed as error:
        raise BackendError(f"expected a session at {service}, found: {error}") from error


def appended(resampler: Resampler, samples: bytes, *, is_last: bool = False) -> Iterator[Event]:
    """The events that add PCM16 to the input buffer, at the rate of `resampler`."""
    heard = np.frombuffer(samples, "<i2").astype(np.int16, copy=False)
    sent = resampler.push(heard).astype("<i2").tobytes()
    if is_last:
        sent += resampler.flush().astype("<i2").tobytes()
    for start in range(0, len(sent), PART_BYTES):
        audio = base64.b64encode(sent[start : start + PART_BYTES]).decode("ascii")
        yield {"type": "input_audio_buffer.append", "audio": audio}
