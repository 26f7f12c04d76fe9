"""A caller's words as sound: spoken by the server's own voice beforehand (``/v1/audio/speech``)."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import httpx
import numpy as np

from clients.call.script import ScriptedTurn, Utterance, utterance_of
from clients.connection import RATE_HZ, authorization
from clients.errors import CallScriptError, ConnectionFailed
from clients.recording import Recording

SPEAK_TIMEOUT_S = 60.0
MAX_SPEECH_BYTES = 60 * RATE_HZ * 2  # a minute: no turn is longer


async def spoken(
    texts: Iterable[str], url: str, key: str | None, voice: str, *, wait_ms: float = 0.0
) -> tuple[Utterance, ...]:
    """One utterance a text, named by its number. url: of the server's Realtime protocol.

    Raises:
        ConnectionFailed: the server has no voice for them.
    """
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    address = f"{scheme}://{parts.netloc}/v1/audio/speech"
    async with httpx.AsyncClient(timeout=SPEAK_TIMEOUT_S, headers=authorization(key)) as client:
        turns = [
            ScriptedTurn(str(n), text, "", "agent", wait_ms, 0.0, ())
            for n, text in enumerate(texts)
        ]
        return tuple([await _spoken(client, address, turn, voice) for turn in turns])


async def _spoken(
    client: httpx.AsyncClient, address: str, turn: ScriptedTurn, voice: str
) -> Utterance:
    asked = {"input": turn.text, "voice": voice, "response_format": "pcm", "model": "tts-1"}
    try:
        answer = await client.post(address, json=asked)
    except httpx.HTTPError as error:
        raise ConnectionFailed(
            f"expected {address} to speak the caller's turn, found {error}"
        ) from error
    if answer.status_code != 200 or len(answer.content) > MAX_SPEECH_BYTES:
        raise ConnectionFailed(
            f"expected {address} to speak {turn.text[:40]!r} in a minute, found HTTP "
            f"{answer.status_code} and {len(answer.content)} bytes"
        )
    samples = np.frombuffer(answer.content[: len(answer.content) // 2 * 2], dtype="<i2")
    try:
        return utterance_of(turn, Recording(samples.astype(np.int16), RATE_HZ))
    except CallScriptError as error:
        raise ConnectionFailed(f"{address}: {error}") from error
