"""A small client of the OpenAI Realtime protocol: JSON events over one WebSocket.

Everything that arrives is stamped with the monotonic clock before it is parsed, so that the time
spent on base64 and JSON here is never charged to the server. Names are the protocol's own (GA).
"""

from __future__ import annotations

import base64
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
    InvalidURI,
)

from clients.errors import ConnectionFailed
from clients.playout import Interrupted
from clients.recording import Samples

RATE_HZ = 24_000  # the protocol's PCM16 rate, in both directions


@dataclass(frozen=True, slots=True)
class Received:
    """One server event and when it arrived (monotonic seconds)."""

    event: dict[str, Any]
    at: float

    @property
    def type(self) -> str:
        return str(self.event.get("type", ""))

    @property
    def samples(self) -> Samples:
        """The PCM16 audio of a ``response.output_audio.delta``."""
        return np.frombuffer(base64.b64decode(self.event["delta"]), dtype="<i2").astype(np.int16)


def realtime_url(url: str, extras: dict[str, str] | None = None) -> str:
    """Complete a person's URL: http -> ws, the default path, and extra query parameters.

    Raises:
        ConnectionFailed: it is no ws, wss, http or https URL, or names no host or no port that is.
    """
    try:
        parts = urlsplit(url if "://" in url else f"ws://{url}")
        is_address = bool(parts.hostname) and parts.port != 0  # asked for, a wrong port raises
    except ValueError:
        is_address = False
    scheme = {"http": "ws", "https": "wss"}.get(parts.scheme, parts.scheme) if is_address else ""
    if scheme not in ("ws", "wss"):
        raise ConnectionFailed(
            f"expected an address as ws://host:port or http://host:port, found {url!r}"
        )
    is_whole = parts.path.rstrip("/") not in ("", "/v1")  # the latter is what OpenAI's clients get
    path = parts.path if is_whole else "/v1/realtime"
    query = urlencode([*parse_qsl(parts.query), *(extras or {}).items()])
    return urlunsplit((scheme, parts.netloc, path, query, ""))


def own_key(url: str) -> str | None:
    """The first key of VOICELOOP_KEYS, which is what a server beside us lets in.

    None for a server elsewhere: it is not ours, and is not told the key.
    """
    host = urlsplit(url).hostname or ""
    if host not in ("localhost", "::1") and not host.startswith("127."):
        return None
    return os.environ.get("VOICELOOP_KEYS", "").split(",")[0].strip() or None


def typed(text: str) -> dict[str, Any]:
    """The item of a turn that is typed."""
    content = [{"type": "input_text", "text": text}]
    return {"type": "message", "role": "user", "content": content}


def authorization(key: str | None) -> dict[str, str]:
    """The header that carries a key, none without one.

    Raises:
        ConnectionFailed: no header can carry it; the message does not show it.
    """
    if key and not (key.isascii() and key.isprintable()):
        raise ConnectionFailed("expected a key of printable ASCII characters, found others in it")
    return {"Authorization": f"Bearer {key}"} if key else {}


async def dial(address: str, key: str | None) -> ClientConnection:
    """A socket to a complete address.

    Raises:
        ConnectionFailed: nobody listens there, the server refused, or the key is none.
    """
    url = address.partition("?")[0]
    headers = authorization(key)
    try:
        # Base64 PCM hardly compresses and deflating it costs more than the bytes saved.
        # max_size: a server may send frames up to its own limit; this one sends < 1 MiB.
        return await connect(
            address, additional_headers=headers, compression=None, max_size=4 * 1024 * 1024
        )
    except InvalidStatus as error:
        raise ConnectionFailed(_refusal(url, error.response.status_code)) from error
    except ssl.SSLCertVerificationError as error:
        raise ConnectionFailed(
            f"expected a certificate that this machine trusts at {url}, found: "
            f"{error.verify_message} (SSL_CERT_FILE=cert.pem before the command trusts your "
            "own, for the name it was made for)"
        ) from error
    except ssl.SSLError as error:
        raise ConnectionFailed(
            f"expected TLS at {url}, found none: {error.reason or error} (a server without "
            "--certfile is reached by ws:// or http://)"
        ) from error
    except (OSError, InvalidHandshake, InvalidURI, TimeoutError, UnicodeError) as error:
        raise ConnectionFailed(
            f"No server answers at {url}: {error}. Start one: voiceloop serve"
        ) from error


class RealtimeConnection:
    """One open session. ``send`` and ``events`` may be used by different tasks."""

    def __init__(
        self, socket: ClientConnection, url: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = socket
        self._clock = clock
        self.url = url
        self.ended_by = ""  # the server's close code and reason, or that there was none

    @classmethod
    async def open(
        cls, url: str, *, key: str | None = None, extras: dict[str, str] | None = None
    ) -> Self:
        """Connect. Raises: ConnectionFailed, as `dial`."""
        address = realtime_url(url, extras)
        return cls(await dial(address, key), address)

    async def send(self, event: dict[str, Any]) -> None:
        """Send one client event.

        Raises:
            ConnectionFailed: the server has gone.
        """
        try:
            await self._socket.send(json.dumps(event))
        except ConnectionClosed as error:
            raise ConnectionFailed(f"the server hung up: {_how(error)}") from error

    async def append_audio(self, samples: Samples) -> None:
        """Send caller audio: mono int16 at 24 kHz."""
        audio = base64.b64encode(samples.astype("<i2").tobytes()).decode("ascii")
        await self.send({"type": "input_audio_buffer.append", "audio": audio})

    async def truncate(self, interrupted: Interrupted) -> None:
        """Tell the server how much of an interrupted item was heard."""
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": interrupted.item_id,
                "content_index": 0,
                "audio_end_ms": int(interrupted.played_ms),
            }
        )

    async def events(self) -> AsyncIterator[Received]:
        """Server events until the connection closes, each stamped on arrival.

        Raises:
            ConnectionFailed: a frame is no JSON object: the server speaks something else.
        """
        try:
            while True:
                frame = await self._socket.recv()
                at = self._clock()
                yield Received(_read(frame), at)
        except ConnectionClosed as error:
            self.ended_by = _how(error)

    async def close(self) -> None:
        await self._socket.close()

    def abort(self) -> None:
        """Drop the line without a word, as a telephone that loses its network does."""
        self._socket.transport.abort()


def _how(closed: ConnectionClosed) -> str:
    """Return who closed a connection, by which codes; of a line that broke, what the system
    says.
    """
    broke = closed.__cause__
    return str(closed) if broke is None else f"{closed} ({broke!r})"


def _refusal(url: str, status: int) -> str:
    """Return what a server that answers over HTTP, but not with a session, says by it."""
    refused = f"{url} refused the call with HTTP {status}"
    match status:
        case 401:
            return f"{refused}: set VOICELOOP_KEYS to a key of it"
        case 503:
            return f"{refused}: it is loading, full or stopping"
        case 403 | 404:
            return f"{refused}: the path is /v1/realtime"
        case _:
            return refused


def _read(frame: str | bytes) -> dict[str, Any]:
    try:
        event = json.loads(frame)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        shown = repr(frame if len(frame) <= 40 else frame[:40])
        raise ConnectionFailed(f"expected events of the Realtime protocol, found a frame {shown}")
    return event
