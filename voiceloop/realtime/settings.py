"""The settings of one session, frozen: what ``session.updated`` echoes.

Owns the values and their wire form; ``session_update.py`` merges changes into them. Pure.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from voiceloop.backends import Tool, VoiceOptions
from voiceloop.capabilities import OPENAI_VOICES
from voiceloop.realtime.mcp.entry import McpEntry

Modality = Literal["audio", "text"]
NoiseField = Literal["near_field", "far_field"]  # where the microphone stands
Json = dict[str, Any]


class AudioFormat(msgspec.Struct, frozen=True):
    """``audio/pcm`` is PCM16 mono little-endian at 24 or 16 kHz; the G.711 laws are 8 kHz."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"] = "audio/pcm"
    rate: int = 24000

    @property
    def n_sample_bytes(self) -> int:
        return 2 if self.type == "audio/pcm" else 1

    @property
    def encoding(self) -> Literal["pcm16", "pcmu", "pcma"]:
        """Return its name in ``audio.codec``."""
        match self.type:
            case "audio/pcm":
                return "pcm16"
            case "audio/pcmu":
                return "pcmu"
            case "audio/pcma":
                return "pcma"

    def duration_ms(self, n_bytes: int) -> float:
        return n_bytes / self.n_sample_bytes * 1000.0 / self.rate

    def to_wire(self) -> Json:
        wire: Json = {"type": self.type}
        if self.type == "audio/pcm":
            wire["rate"] = self.rate
        return wire


class ServerVad(msgspec.Struct, frozen=True, tag_field="type", tag="server_vad"):
    """A turn ends after ``silence_duration_ms`` of silence."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True


class SemanticVad(msgspec.Struct, frozen=True, tag_field="type", tag="semantic_vad"):
    """A turn ends when it sounds finished; eagerness caps the wait."""

    eagerness: Literal["auto", "low", "medium", "high"] = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


class Transcription(msgspec.Struct, frozen=True, omit_defaults=True):
    """Present: transcription events of the caller's speech are sent. Echoed without nulls."""

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
    noise_reduction: NoiseField | None = None
    voice: str = VoiceOptions().voice
    own_voice: str = VoiceOptions().voice  # what the names of OpenAI's voices stand for
    speed: float = VoiceOptions().speed
    tools: tuple[Tool, ...] = ()
    mcp: tuple[McpEntry, ...] = ()
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | Literal["inf"] = "inf"
    temperature: float | None = None
    reasoning_effort: str | None = None
    truncation: str | Json = "auto"
    timeline: bool = False
    partials: bool = False
    notices: bool = False
    sources: bool = False
    slots: bool = False
    confirmations: bool = False
    resume: bool = False

    @property
    def speaks(self) -> bool:
        """True when replies are spoken (else they are text)."""
        return "audio" in self.output_modalities

    @property
    def transcribes(self) -> bool:
        """True when the client wants to read what the caller said."""
        return self.transcription is not None or self.type == "transcription"

    @property
    def takes_answers_back(self) -> bool:
        """Whether a turn is answered by itself, and the caller may stop that answer."""
        detection = self.turn_detection
        if detection is None or self.type != "realtime":
            return False
        return detection.create_response and detection.interrupt_response

    def real_voice(self, name: str) -> str:
        """The voice that this name means to our models."""
        return self.own_voice if name in OPENAI_VOICES else name

    def to_wire(self, session_id: str, expires_at: int) -> Json:
        """The full effective session object, known keys only (some clients reject others)."""
        audio_in: Json = {
            "format": self.input_format.to_wire(),
            "transcription": msgspec.to_builtins(self.transcription),
            "noise_reduction": {"type": self.noise_reduction} if self.noise_reduction else None,
            "turn_detection": msgspec.to_builtins(self.turn_detection),
        }
        wire: Json = {
            "type": self.type,
            "object": "realtime.session",
            "id": session_id,
            "expires_at": expires_at,
        }
        if self.type == "transcription":
            wire["object"] = "realtime.transcription_session"
            wire["audio"] = {"input": audio_in}
            return wire
        audio_out = {
            "format": self.output_format.to_wire(),
            "voice": self.voice,
            "speed": self.speed,
        }
        wire |= {
            "model": self.model,
            "output_modalities": list(self.output_modalities),
            "instructions": self.instructions,
            "tools": [tool_to_wire(tool) for tool in self.tools if not tool.server_label]
            + [entry.wire for entry in self.mcp],
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "truncation": self.truncation,
            "audio": {"input": audio_in, "output": audio_out},
        }
        if self.reasoning_effort is not None:
            wire["reasoning"] = {"effort": self.reasoning_effort}
        return wire


def tool_to_wire(tool: Tool) -> Json:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
