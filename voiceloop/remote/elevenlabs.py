"""ElevenLabs: ``tts_url = "elevenlabs:"``, text in and sound out while it streams.

Written from its public reference ("Text to Speech, WebSocket", November 2026), and held against a
server scripted from that. It was not run against the service itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from websockets.asyncio.client import ClientConnection

from voiceloop.backends import SpokenWord
from voiceloop.errors import BackendError
from voiceloop.remote.streaming_voice import StreamingVoice, StreamingVoiceStream
from voiceloop.remote.voice import RATE_HZ

LONGEST_IDLE_S = 180  # the most that it takes: a connection that waits for its reply stays
SPEEDS = (0.7, 1.2)


class ElevenLabs(StreamingVoice):
    """The voice's name is its id there; ``tts_model`` a model that streams."""

    vendor = "ElevenLabs"
    default_url = "wss://api.elevenlabs.io"
    default_model = "eleven_flash_v2_5"
    default_voice = "JBFqnCBsd6RMkjVDRZzb"  # "George", which its documentation speaks with

    def _headers(self, key: str) -> Mapping[str, str]:
        return {"xi-api-key": key}

    def _address(self, voice: str) -> str:
        asked = {
            "model_id": self.model,
            "output_format": f"pcm_{RATE_HZ}",
            "auto_mode": "true",  # whole clauses are sent: there is nothing to buffer for
            "sync_alignment": "true",
            "inactivity_timeout": LONGEST_IDLE_S,
        }
        name = quote(voice, safe="")
        return f"{self.url}/v1/text-to-speech/{name}/stream-input?{urlencode(asked)}"

    def _stream(
        self, stream_id: str, socket: ClientConnection, voice: str, speed: float
    ) -> ElevenLabsStream:
        return ElevenLabsStream(stream_id, socket, speed)


class ElevenLabsStream(StreamingVoiceStream):
    """The stream of ElevenLabs, whose times are of characters, and count from the beginning of
    each piece of sound.
    """

    def __init__(self, stream_id: str, socket: ClientConnection, speed: float) -> None:
        super().__init__(stream_id, ElevenLabs.vendor, socket)
        self._word: tuple[str, float, float] = ("", 0.0, 0.0)  # so far, from, to
        least, most = SPEEDS
        self._post({"text": " ", "voice_settings": {"speed": min(max(speed, least), most)}})

    def _say(self, clause: str) -> None:
        self._post({"text": clause if clause.endswith(" ") else f"{clause} "})

    def _end_text(self, rest: str) -> None:
        if rest.strip():
            self._say(rest)
        self._post({"text": ""})

    def _observe(self, event: dict[str, Any]) -> None:
        if event.get("error"):
            raise BackendError(f"{self._service} failed: {event.get('code') or 'no code'}")
        words = self._words(event.get("alignment") or {})
        if event.get("isFinal"):
            words += self._whole_word()
        self._play(event.get("audio") or "", words)
        if event.get("isFinal"):
            self._end_sound()

    def _words(self, alignment: Mapping[str, Any]) -> tuple[SpokenWord, ...]:
        """Return the words that end in this piece; one may have begun in the piece before."""
        from_ms, found = self._played_ms, list[SpokenWord]()
        durations = alignment.get("charDurationsMs") or alignment.get("charsDurationsMs") or ()
        for character, start, lasts in zip(
            alignment.get("chars", ()), alignment.get("charStartTimesMs", ()), durations,
            strict=False,
        ):  # fmt: skip
            if character.isspace():
                found += self._whole_word()
                continue
            word, begun_ms, _ = self._word
            at_ms = from_ms + float(start)
            begun_ms = begun_ms if word else at_ms
            self._word = (word + character, begun_ms, at_ms + float(lasts))
        return tuple(found)

    def _whole_word(self) -> tuple[SpokenWord, ...]:
        (word, start_ms, end_ms), self._word = self._word, ("", 0.0, 0.0)
        return (self._placed(word, start_ms, end_ms),) if word else ()
