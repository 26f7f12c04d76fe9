"""What a server is told at its start: ``Config`` (the server) and ``AgentConfig`` (the agent file).

Owns the frozen dataclasses, their defaults and where values come from: TOML < environment
(``VOICELOOP_*``) < flag. An unknown key fails at the start and names the nearest valid one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one client from hurting the others."""

    max_sessions: int = 64
    frame_bytes: int = 2 * 1024 * 1024
    session_minutes: float = 60.0
    uncommitted_audio_minutes: float = 10.0
    slow_client_s: float = 6.0
    drain_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Config:
    """One server. Every field may be set in TOML, as ``VOICELOOP_<FIELD>``, or by a flag."""

    host: str = "127.0.0.1"
    port: int = 8080
    preset: str = "embedded"
    agent: Path | None = None
    keys: tuple[str, ...] = field(default=(), repr=False)
    keys_file: Path | None = None
    allowed_origins: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    stt_url: str | None = None
    llm_url: str | None = None
    tts_url: str | None = None
    stt_model: str = "whisper-1"
    llm_model: str = ""
    tts_model: str = "tts-1"
    remote_key: str = field(default="", repr=False)
    pacing_lead_ms: int = 200
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_transcripts: bool = False
    certfile: Path | None = None
    keyfile: Path | None = None
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class AgentTool:
    """A function the agent may call. ``result``: the server answers it itself with this text;

    ``table``/``table_key``: with the entry whose key is the value of that argument.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    side_effect_free: bool = False
    result: str | None = None
    table_key: str | None = None
    table: Mapping[str, str] = field(default_factory=dict)

    def answer(self, arguments: Mapping[str, Any]) -> str | None:
        """The server's own answer, or None where the client must answer."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class BargeIn:
    """What happens when the caller speaks while the agent does."""

    enabled: bool = True
    duck_ms: int = 60
    hold_ms: int = 160
    stop_ms: int = 240
    backchannels: tuple[str, ...] = ("uh huh", "mm hmm", "mhm", "yeah", "okay", "right", "i see")


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """How long and how freely the agent answers."""

    max_reply_tokens: int = 160
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Crisis:
    """Words after which the agent gives a fixed answer instead of the model's."""

    words: tuple[str, ...] = ()
    answer: str = ""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """The agent: what ``agent.toml`` holds."""

    name: str = "Agent"
    instructions: str = "You are a helpful voice assistant. Answer in one or two short sentences."
    greeting: str = ""
    voice: str = "default"
    speed: float = 1.0
    language: str = "en"
    tools: tuple[AgentTool, ...] = ()
    hotwords: tuple[str, ...] = ()
    eagerness: Literal["auto", "low", "medium", "high"] = "auto"
    barge_in: BargeIn = field(default_factory=BargeIn)
    limits: ReplyLimits = field(default_factory=ReplyLimits)
    crisis: Crisis = field(default_factory=Crisis)


def load_config(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read the server's configuration: TOML file < environment < flags (None: not given).

    Raises:
        ConfigError: the file is missing or not TOML, a key is unknown (the nearest valid name is
            in the message), or a value is of the wrong type or out of its range.
    """
    raise NotImplementedError


def load_agent(path: Path) -> AgentConfig:
    """Read an agent file.

    Raises:
        ConfigError: as for ``load_config``.
    """
    raise NotImplementedError
