"""Who answers a call: the agent's name and the three models, as a server tells them.

``GET /v1/agent`` is VoiceLoop's own route; another server has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx

from clients.connection import authorization
from clients.errors import ConnectionFailed

DEADLINE_S = 5.0


@dataclass(frozen=True, slots=True)
class AgentCard:
    """A model's name is "" where a service chooses it."""

    name: str
    recognizer: str
    language_model: str
    voice: str

    def __str__(self) -> str:
        parts = (
            (self.recognizer, "hears"),
            (self.language_model, "answers"),
            (self.voice, "speaks"),
        )
        return ", ".join(f"{model or 'a service'} {does}" for model, does in parts)


async def read_card(port: int, key: str | None) -> AgentCard:
    """Ask the server at a loopback port. Raises: ConnectionFailed."""
    url = f"http://127.0.0.1:{port}/v1/agent"
    try:
        async with httpx.AsyncClient(timeout=DEADLINE_S, trust_env=False) as http:
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
    )
