"""What an operator allows and promises callers, pays for, and sees of the models' processes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields
from pathlib import Path

import msgspec

MIB = 1024 * 1024
TERMINAL_DRAIN_S = 10.0
SERVICE_DRAIN_S = 600.0  # longer than any answer; who stops it sets the bound that counts
Range = tuple[str, float, float, float]  # a key, its value, the least and the most it may be


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one client from hurting the others."""

    max_sessions: int = 64
    frame_bytes: int = 2 * MIB
    session_minutes: float = 60.0
    uncommitted_audio_minutes: float = 10.0
    slow_client_s: float = 5.0
    drain_s: float | None = None
    connections_per_address: int = 256
    admit_by_load: bool = True  # else calls are only counted

    @property
    def longest_drain_s(self) -> float:
        """``drain_s``, or by who started the server: a person at a terminal waits for its end."""
        if self.drain_s is not None:
            return self.drain_s
        return TERMINAL_DRAIN_S if sys.stderr.isatty() else SERVICE_DRAIN_S

    def ranges(self) -> list[Range]:
        return [
            ("limits.max_sessions", self.max_sessions, 1, 100_000),
            ("limits.frame_bytes", self.frame_bytes, 4096, 21 * MIB),
            ("limits.session_minutes", self.session_minutes, 0.01, 24 * 60),
            ("limits.uncommitted_audio_minutes", self.uncommitted_audio_minutes, 0.01, 60),
            ("limits.slow_client_s", self.slow_client_s, 0.1, 8),
            ("limits.drain_s", self.longest_drain_s, 0, 3600),
            ("limits.connections_per_address", self.connections_per_address, 1, 100_000),
        ]


@dataclass(frozen=True, slots=True)
class KeyQuota:
    """What each key may use, its client secrets included; 0: no bound.

    calls, requests: at a time, the latter over HTTP. The others an hour. speculative_tokens: of
    replies made ahead of a turn's end that were thrown away, or taken back unheard. tool_calls:
    that the server made.
    """

    calls: int = 0
    call_minutes: float = 0.0
    requests: int = 12  # of the 16 that a server answers at a time: another key finds room
    speculative_tokens: int = 0
    tool_calls: int = 0

    def ranges(self) -> list[Range]:
        return [
            ("quota.calls", self.calls, 0, 100_000),
            ("quota.call_minutes", self.call_minutes, 0, 10**6),
            ("quota.requests", self.requests, 0, 100_000),
            ("quota.speculative_tokens", self.speculative_tokens, 0, 10**12),
            ("quota.tool_calls", self.tool_calls, 0, 10**9),
        ]


@dataclass(frozen=True, slots=True)
class Slo:
    """What the operator promises callers; turns are counted against it.

    gap_ms: from the caller's last sound to the agent's first, as the server sees it. answer_ms: the
    part of it after the decision that the caller has finished; where its p95 is later than that
    under load, fewer calls are let in. barge_in_ms: from the caller's onset to the agent's silence.
    """

    gap_ms: int = 800
    answer_ms: int = 500
    barge_in_ms: int = 300

    def ranges(self) -> list[Range]:
        return [
            ("slo.gap_ms", self.gap_ms, 100, 60_000),
            ("slo.answer_ms", self.answer_ms, 50, 60_000),
            ("slo.barge_in_ms", self.barge_in_ms, 50, 10_000),
        ]


PROMISED = Slo()


@dataclass(frozen=True, slots=True)
class Prices:
    """What tokens and the server cost, in whatever currency; 0: nothing, or it is not asked.

    prompt_million, cached_million, reply_million: a million tokens of the language model, of a
    prompt that is computed or found in a cache, and of replies. server_hour: the machine.
    """

    prompt_million: float = 0.0
    cached_million: float = 0.0
    reply_million: float = 0.0
    server_hour: float = 0.0

    def ranges(self) -> list[Range]:
        return [
            (f"prices.{part.name}", getattr(self, part.name), 0, 10**6) for part in fields(self)
        ]


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Where traces go: the URL of an OTLP collector over HTTP; words: with what was said."""

    url: str | None = None
    words: bool = False


@dataclass(frozen=True, slots=True)
class CanarySettings:
    """Workers of another version on a share of new calls, and by how much they may be worse.

    version: their label; "": this server tries none by itself. shadow: share of the other calls'
    turns that they answer too, for nobody to hear. gap_ms: on the mean. cut_ins,
    failures: on their shares of turns; tool_calls: on the share of calls that cannot be made as
    written. tokens: of a turn, more or fewer, as a share of what the others write.
    """

    version: str = ""
    share: float = 0.05
    shadow: float = 0.0
    gap_ms: float = 50.0
    cut_ins: float = 0.02
    failures: float = 0.01
    tool_calls: float = 0.02
    tokens: float = 0.25

    def ranges(self) -> list[Range]:
        return [
            ("canary.share", self.share, 0, 1),
            ("canary.shadow", self.shadow, 0, 1),
            ("canary.gap_ms", self.gap_ms, 0, 10_000),
            ("canary.cut_ins", self.cut_ins, 0, 1),
            ("canary.failures", self.failures, 0, 1),
            ("canary.tool_calls", self.tool_calls, 0, 1),
            ("canary.tokens", self.tokens, 0, 10),
        ]


NO_CANARY = CanarySettings()


@dataclass(frozen=True, slots=True)
class WorkerAddresses:
    """Workers on the network, HOST:PORT each, instead of processes that this server starts.

    list: a file that names them, read again when it is replaced; all models are then elsewhere.
    key: what gateways and workers share; each proves to the other that it has it. ca: who signs the
    other end's certificate, certfile and keyfile: this end's; with them the line is encrypted.
    """

    engine: tuple[str, ...] = ()
    recognizer: tuple[str, ...] = ()
    voice: tuple[str, ...] = ()
    list: Path | None = None
    key: str = field(default="", repr=False)
    ca: Path | None = None
    certfile: Path | None = None
    keyfile: Path | None = None


class WorkerLoad(msgspec.Struct, frozen=True):
    """A process that holds models, at one moment.

    state: "ready", or what it does instead. busy: share of its time that it computes. oldest_s: how
    long the oldest thing that a caller waits for has had no answer; overdue_s: of each call that is
    late the same, beyond what is usual on this machine. n_streams: of this server;
    n_streams_of_all: of all that the process serves, 0 where it says none. restarts: how often, by
    cause. totals: what its models count. trouble: why it is not ready, where that is known.
    served: of its language model the weights, kv, layers, drafter and gate.
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
