"""Cartesia: ``tts_url = "cartesia:"``, text in and sound out while it streams.

Written from its public reference ("Text to Speech, WebSocket", version 2026-03-01), and held
against a server scripted from that. It was not run against the service itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from websockets.asyncio.client import ClientConnection

from voiceloop.errors import BackendError
from voiceloop.remote.streaming_voice import StreamingVoice, StreamingVoiceStream
from voiceloop.remote.voice import RATE_HZ

VERSION = "2026-03-01"
SPEEDS = (0.6, 1.5)


class Cartesia(StreamingVoice):
    """The voice's name is its id there; ``tts_model`` one of its models."""

    vendor = "Cartesia"
    default_url = "wss://api.cartesia.ai"
    default_model = "sonic-3.5"
    default_voice = "a0e99841-438c-4a64-b679-ae501e7d6091"  # which its documentation speaks with

    def _headers(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key, "cartesia-version": VERSION}

    def _address(self, voice: str) -> str:
        return f"{self.url}/tts/websocket"

    def _stream(
        self, stream_id: str, socket: ClientConnection, voice: str, speed: float
    ) -> CartesiaStream:
        return CartesiaStream(stream_id, socket, self.model, voice, speed)


class CartesiaStream(StreamingVoiceStream):
    """One context; its words' times count from the beginning of its sound."""

    def __init__(
        self, stream_id: str, socket: ClientConnection, model: str, voice: str, speed: float
    ) -> None:
        super().__init__(stream_id, Cartesia.vendor, socket)
        self._asked: dict[str, Any] = {
            "model_id": model,
            "voice": {"mode": "id", "id": voice},
            "context_id": stream_id,
            "output_format": {
                "container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE_HZ,
            },
            "add_timestamps": True,
            "max_buffer_delay_ms": 0,  # whole clauses are sent: there is nothing to wait for
        }  # fmt: skip
        if speed != 1.0:
            least, most = SPEEDS
            self._asked["generation_config"] = {"speed": min(max(speed, least), most)}

    def _say(self, clause: str) -> None:
        self._post({**self._asked, "transcript": clause, "continue": True})

    def _end_text(self, rest: str) -> None:
        self._post({**self._asked, "transcript": rest, "continue": False})

    def _observe(self, event: dict[str, Any]) -> None:
        match event.get("type"):
            case "chunk":
                self._play(event["data"])
            case "timestamps":
                told = event["word_timestamps"]
                each = zip(told["words"], told["start"], told["end"], strict=True)
                placed = (
                    self._placed(word, 1000.0 * start, 1000.0 * end) for word, start, end in each
                )
                self._play("", tuple(placed))
            case "done":
                self._end_sound()
            case "error":
                code = event.get("error_code") or event.get("status_code") or "no code"
                raise BackendError(f"{self._service} failed: {code}")
