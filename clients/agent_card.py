"""The answering agent's name and its three models, as a server reports them.

``GET /v1/agent`` is VoiceLoop's own route; another server has none.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from clients.connection import authorization, realtime_url
from clients.errors import ConnectionFailed

DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentCard:
    """A model's name is "" where a service chooses it.

    ``client_tools``: those of the agent's tools that the server leaves to its client.
    """

    name: str
    recognizer: str
    language_model: str
    voice: str
    client_tools: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = (
            (self.recognizer, "hears"),
            (self.language_model, "answers"),
            (self.voice, "speaks"),
        )
        return ", ".join(f"{model or 'a service'} {does}" for model, does in parts)


async def read_card(realtime: str, key: str | None) -> AgentCard:
    """Ask the server of a Realtime URL. Raises: ConnectionFailed."""
    parts = urlsplit(realtime_url(realtime))
    url = f"{'https' if parts.scheme == 'wss' else 'http'}://{parts.netloc}/v1/agent"
    trusted = ssl.create_default_context()  # as the call's own line: SSL_CERT_FILE counts
    try:
        async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False, verify=trusted) as http:
            answer = await http.get(url, headers=authorization(key))
            answer.raise_for_status()
            return _read(answer.json())
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConnectionFailed(f"expected the agent's card at {url}, found {error}") from error


def _read(body: Any) -> AgentCard:
    models = body["models"]
    return AgentCard(
        str(body["name"]),
        str(models["recognizer"]),
        str(models["language_model"]),
        str(models["voice"]),
        tuple(str(name) for name in body.get("client_tools", ())),
    )
