"""The settings of one session: what ``session.update`` changes and ``session.updated`` echoes.

Owns the frozen settings, their wire form, and the merge: present fields replace, ``null`` clears,
a change of the turn detection's type starts again from that type's defaults, unknown keys are
accepted and dropped. Pure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from voiceloop.backends import Tool

Modality = Literal["audio", "text"]


class AudioFormat(msgspec.Struct, frozen=True):
    """``audio/pcm`` is PCM16 mono little-endian at 24 or 16 kHz; the G.711 laws are 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int = 24000

    @property
    def n_sample_bytes(self) -> int:
        return 2 if self.type == "audio/pcm" else 1


class ServerVad(msgspec.Struct, frozen=True, tag="server_vad"):
    """A turn ends after ``silence_duration_ms`` of silence."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(msgspec.Struct, frozen=True, tag="semantic_vad"):
    """A turn ends when it sounds finished; eagerness caps the wait."""

    eagerness: Literal["auto", "low", "medium", "high"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Present: transcription events of the caller's speech are sent."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None


class SessionSettings(msgspec.Struct, frozen=True):
    """Everything a session can change. ``turn_detection`` None means manual commit."""

    type: Literal["realtime", "transcription"] = "realtime"
    model: str = "voiceloop"
    instructions: str = ""
    output_modalities: tuple[Modality, ...] = ("audio",)
    input_format: AudioFormat = AudioFormat()
    output_format: AudioFormat = AudioFormat()
    turn_detection: TurnDetection | None = SemanticVad()
    transcription: Transcription | None = None
    noise_reduction: dict[str, Any] | None = None
    voice: str = "default"
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | Literal["inf"] = "inf"
    temperature: float | None = None
    timeline: bool = False
    partials: bool = False

    @property
    def speaks(self) -> bool:
        """True when replies are spoken (else they are text)."""
        return "audio" in self.output_modalities
