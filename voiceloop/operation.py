"""Settings of the operator: allowances, promises to callers, prices, and the view of the models'
processes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from voiceloop.config_reader import key

MIB = 1024 * 1024
MAIN_MODEL = "main"  # what operators, sessions and agents call the server's own language model
HOST, PORT = "127.0.0.1", 8080  # of a server, and of a cluster's
ANSWER_SHARE = 5 / 8  # of the gap that is promised: the rest is for the end of the turn
TERMINAL_DRAIN_S = 10.0
SERVICE_DRAIN_S = 600.0  # longer than any answer; who stops it sets the bound that counts


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one client from hurting the others."""

    max_sessions: int = key(
        64,
        "Calls at a time. One more gets 503. The server keeps a tenth of these places for "
        "callers whose call has just ended.",
        ge=1,
        le=100_000,
    )
    session_minutes: float = key(60.0, "The longest call.", ge=0.01, le=24 * 60)
    # Audio that waits for a manual commit, inside items, or in one transcription request.
    uncommitted_audio_minutes: ClassVar[float] = 10.0
    slow_client_s: ClassVar[float] = 5.0  # a client that takes no message for so long is closed
    drain_s: float | None = key(
        None,
        "How long a stopped server lets calls and answers over HTTP finish. Without it: 10 where "
        "the server was started in a terminal, else 600.",
        ge=0,
        le=3600,
    )
    connections_per_address: int = key(
        256,
        "Open connections of one network address, calls or not. This machine's own (a proxy) are "
        "not counted. The limit of open files (`ulimit -n`) bounds all connections; its last "
        "tenth is kept for `/healthz`, `/readyz` and `/metrics`.",
        ge=1,
        le=100_000,
    )
    admit_by_load: bool = key(
        True,
        "A call that would break the gap of the others is refused with 503. The server learns"
        " from the calls so far how many this machine carries "
        "([OPERATIONS.md](OPERATIONS.md#how-many-calls-are-let-in)). Off: only "
        "`limits.max_sessions` counts.",
    )

    @property
    def longest_drain_s(self) -> float:
        """``drain_s``, or by who started the server: a person at a terminal waits for its end."""
        if self.drain_s is not None:
            return self.drain_s
        return TERMINAL_DRAIN_S if sys.stderr.isatty() else SERVICE_DRAIN_S


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def is_private(text: str) -> bool:
    """Whether it is an IP address that nobody reaches from the internet."""
    return is_address(text) and ip_address(text).is_private and not ip_address(text).is_unspecified


def is_network(text: str) -> bool:
    """Whether it is an IP address, or a network as ``10.0.0.0/24``."""
    try:
        ip_network(text, strict=False)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class WebRtcSettings:
    """How browsers reach the server over WebRTC."""

    port: int = key(
        0,
        "UDP port of all WebRTC calls, at `host`. If it is taken, one of the next 15. Open "
        "this port in the firewall. 0: any free port.",
        ge=0,
        le=65535,
    )
    address: str = key(
        "",
        "The address at which browsers reach that port: behind a proxy, behind NAT, in a "
        "container. The port is then one of all the machine's addresses. Without it: `host`, or "
        "what the machine knows of itself.",
    )
    ice_servers: Mapping[str, Any] = key(
        {},
        "TURN and STUN servers that `GET /v1/realtime/ice-servers` names to pages, each with its "
        'secret. One is `"turns:turn.example.com:443?transport=tcp" = "${TURN_SECRET}"`. The '
        "secret is coturn's `static-auth-secret`, of a STUN server it is empty. The page gets a "
        "name and a password that are valid for one call. The server itself asks none of them.",
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class KeyQuota:
    """Bounds on the use of each key, its client secrets included; 0: no bound."""

    calls: int = key(0, "Calls at a time.", ge=0, le=100_000)
    call_minutes: float = key(
        0.0,
        "Minutes of calls an hour, which come back evenly. Calls under way are not cut off. "
        "If a key's calls use more, its next call must wait until the minutes have been "
        "refilled.",
        ge=0,
        le=10**6,
    )
    # Over HTTP at a time, of the 16 that a server answers: another key finds room.
    requests: ClassVar[int] = 12
    large_tokens: int = key(
        0,
        "Tokens an hour that the large model of a cascade writes, over HTTP too. Above the quota "
        "the small model answers, unless a rule of the agent or the session's effort asks for the "
        "large one.",
        ge=0,
        le=10**12,
    )


@dataclass(frozen=True, slots=True)
class Slo:
    """The operator's promises to callers; turns are counted against them."""

    gap_ms: int = key(
        800,
        "The longest gap. It runs from the caller's last sound to the agent's first, as the "
        "server sees it. From the end of the turn to the answer the server may use five "
        "eighths of this time. If the p95 is longer under load, the server lets in fewer "
        "calls.",
        ge=100,
        le=60_000,
    )
    barge_in_ms: ClassVar[float] = 300.0  # from the caller's onset to the agent's silence

    @property
    def answer_ms(self) -> float:
        """Return the part of the gap after the decision that the caller has finished."""
        return ANSWER_SHARE * self.gap_ms


PROMISED = Slo()


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The destination of traces."""

    url: str | None = key(
        None,
        "An OpenTelemetry collector that takes OTLP over HTTP. As "
        "`http://127.0.0.1:4318/v1/traces`; without it there are no traces.",
        schemes=("http", "https"),
    )
    words: bool = key(False, "Traces hold what the caller and the agent said.")


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The choice of calls that are kept, and of what is kept of them (`voiceloop/recording/`)."""

    folder: Path | None = key(
        None,
        "Keep calls in this folder: both voices, and what happened "
        "([RECORDING.md](RECORDING.md)). Without it no call is kept.",
    )
    consent: Literal["none", "announced", "asked"] = key(
        "announced",
        "How callers learn of it. `announced`: the agent first says that the call is recorded. "
        "`asked`: it asks, and nothing is kept before a yes. `none`: your line says it "
        "elsewhere.",
    )
    announcement: str = key(
        "",
        "The sentence, or the question, in the agent's language. Without it: one of ours, in "
        "English, German, French or Spanish.",
    )
    format: Literal["flac", "opus"] = key(
        "flac",
        "How sound is kept. `opus`: encoded when the call is over and the server has time, at a "
        "third of the size.",
    )
    keep_days: float = key(
        30.0, "Recordings older than that are deleted, within an hour. 0: never.", ge=0,
        le=36_500,
    )  # fmt: skip
    words: Literal["kept", "without_figures", "none"] = key(
        "kept",
        "The words that are kept with the sound. `without_figures` leaves out numbers of four"
        " digits or more, and mail addresses. This does not change the sound: to silence "
        "sound, set `sensitive` on the agent's slot. `none`: times and counts alone.",
    )
    age_key: str = key(
        "",
        "Encrypt what is kept for this public key of age, as `age1...`, once the call is over. "
        "Needs the extra `recording`.",
    )


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """Workers of another version on a share of new calls (`canary/judge.py`)."""

    version: str = ""  # their label; empty: none are tried
    share: float = 0.05


NO_CANARY = CanarySettings()


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Workers on the network instead of processes that this server starts.

    engine, recognizer, voice: HOST:PORT each, as ``llm_url``, ``stt_url``, ``tts_url`` name them.
    """

    engine: tuple[str, ...] = field(default=(), metadata={"is_key": False})
    recognizer: tuple[str, ...] = field(default=(), metadata={"is_key": False})
    voice: tuple[str, ...] = field(default=(), metadata={"is_key": False})
    list: Path | None = key(
        None,
        "A JSON file that names workers, read again when it is replaced. Every role without a URL"
        " is then elsewhere.",
    )
    key: Annotated[tuple[str, ...], Meta(extra={"one_or_list": True})] = key(
        (),
        "The secret of servers and workers, of at least 16 bytes. Each proves to the other "
        "that it has it. If you name several keys, a worker accepts each, and a server tries "
        "them in order ([a new key](CLUSTER.md#a-new-key)).",
        secret=True,
    )


class WorkerLoad(msgspec.Struct, frozen=True):
    """A process that holds models, at one moment.

    state: "ready", or what it does instead. busy: share of its time that it computes. oldest_s: how
    long the oldest thing that a caller waits for has had no answer; overdue_s: of each call that is
    late the same, beyond what is usual on this machine. n_streams: of this server;
    n_streams_of_all: of all that the process serves, 0 where it says none. restarts: how often, by
    cause. totals: what its models count. trouble: why it is not ready, where that is known;
    of one that is ready, why it serves less than was planned.
    served: of its language model the weights, kv, layers, drafter, gate and the device's fault.
    """

    name: str
    roles: tuple[str, ...]
    state: str
    busy: float = 0.0
    oldest_s: float = 0.0
    overdue_s: dict[str, float] = {}
    n_streams: int = 0
    hop_ms: float = 0.0
    restarts: dict[str, int] = {}
    totals: dict[str, float] = {}
    trouble: str = ""
    n_streams_of_all: int = 0
    version: str = ""
    served: dict[str, str] = {}
