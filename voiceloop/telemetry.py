"""Where the time of a turn went, and what the server counts.

Owns `TurnTimeline` (the marks of one turn, in monotonic seconds, and the stages between them, which
sum exactly), the Prometheus metrics of a server, and the probe that measures how late the event
loop runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from voiceloop.backends import Usage

# Each mark and the stage that ends at it, in the order in which a reply comes about. What an
# anticipated turn did ahead of time has marks before the decision: its stages are then 0 long.
STAGES: tuple[tuple[str, str], ...] = (
    ("speech_end", ""),  # arrival of the last sample the detector calls speech
    ("first_low_frame", "vad lag"),
    ("endpoint_decision", "silence wait"),
    ("transcript_final", "final transcript"),
    ("prompt_committed", "prompt"),
    ("first_token", "first token"),
    ("first_clause", "first clause"),
    ("first_audio_frame", "synthesis"),
    ("first_audio_queued", "playout"),
    ("first_byte_on_wire", "writer"),
)
_MARKS = frozenset(mark for mark, _ in STAGES) | {"turn_end"}


@dataclass(slots=True)
class TurnTimeline:
    """The marks of one turn; each is set once, by whoever saw it first.

    speech_end_ms: where the detector heard the caller end, on the session's audio clock.
    """

    turn_id: str
    speech_end_ms: float | None = None
    marks: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def mark(self, name: str, at_s: float) -> None:
        if name not in _MARKS:
            raise ValueError(f"expected one of {sorted(_MARKS)}, found {name!r}")
        self.marks.setdefault(name, at_s)

    def stages(self) -> list[tuple[str, float]]:
        """(stage, milliseconds) in order; they sum to last mark minus first, exactly as marked.

        A mark that is missing leaves its time to the next stage that has one.
        """
        found: list[tuple[str, float]] = []
        before_s: float | None = None
        for mark, stage in STAGES:
            at_s = self.marks.get(mark)
            if at_s is None:
                continue
            if before_s is not None:
                found.append((stage, 1000.0 * max(0.0, at_s - before_s)))
            before_s = at_s if before_s is None else max(before_s, at_s)
        return found

    @property
    def gap_ms(self) -> float | None:
        """Server's part of the gap: arrival of the last speech sample to the first byte sent."""
        if "speech_end" not in self.marks or "first_byte_on_wire" not in self.marks:
            return None
        return 1000.0 * (self.marks["first_byte_on_wire"] - self.marks["speech_end"])

    def payload(self) -> dict[str, Any]:
        """The `voiceloop.timeline` event: marks in monotonic seconds of the server's machine."""
        return {
            "turn_id": self.turn_id,
            "speech_end_ms": self.speech_end_ms,
            "marks": {name: round(at_s, 6) for name, at_s in self.marks.items()},
            "stages": [{"name": name, "ms": round(ms, 3)} for name, ms in self.stages()],
            "gap_ms": self.gap_ms,
            **self.facts,
        }


def anticipation_facts(usage: Usage, wasted_audio_ms: float, draft: str) -> dict[str, Any]:
    """How much of a turn was done ahead of it; see `Usage` for the tokens.

    draft: "released" as it was held, "salvaged" where it had to be verified first, else "none".
    n_discarded_tokens: of drafts, and of a reply taken back before any of it was heard.
    wasted_audio_ms: also what was not heard any more of a reply that the caller interrupted.
    """
    return {
        "draft": draft,
        "n_turn_tokens": usage.n_turn_tokens,
        "n_turn_resident": usage.n_turn_resident,
        "n_left_to_prefill": max(0, usage.n_prompt_tokens - usage.n_cached_tokens),
        "n_reply_tokens": usage.n_reply_tokens,
        "n_discarded_tokens": usage.n_discarded_tokens,
        "n_unheard_tokens": usage.n_unheard_tokens,
        "wasted_audio_ms": round(wasted_audio_ms, 1),
    }


_STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0)
# Bounds stand at 120 and 250 ms: a percentile between two marks 20 ms apart is known well enough.
_BARGE_IN_BUCKETS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0)


class Metrics:
    """What one server counts, over all its sessions."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.stage = histogram(
            "voiceloop_stage_seconds",
            "Time of one stage between the caller's last sound and the agent's first.",
            ["stage"],
            buckets=_STAGE_BUCKETS,
        )
        self.gap = histogram(
            "voiceloop_gap_seconds",
            "Arrival of the caller's last speech sample to the first audio byte sent.",
            buckets=_STAGE_BUCKETS,
        )
        self.turns = counter("voiceloop_turns", "Replies by how they ended.", ["outcome"])
        self.barge_ins = counter(
            "voiceloop_barge_ins",
            "What speech over the agent came to: duck, hold, stop, go_on or resume.",
            ["action"],
        )
        self.barge_in_delay = histogram(
            "voiceloop_barge_in_seconds",
            "From the arrival of the caller's onset to the action.",
            ["action"],
            buckets=_BARGE_IN_BUCKETS,
        )
        self.tokens = counter(
            "voiceloop_reply_tokens", "Reply tokens: generated in all, and thrown away.", ["fate"]
        )
        self.read_ahead_tokens = counter(
            "voiceloop_read_ahead_tokens",
            "Prompts of requests that only had a remote language model read them ahead, in tokens.",
        )
        self.drafts = counter(
            "voiceloop_drafts", "Replies made ahead of the end of the caller's turn.", ["fate"]
        )
        self.wasted_audio_ms = counter(
            "voiceloop_wasted_audio_ms", "Synthesized speech that was never sent."
        )
        self.sessions = Gauge("voiceloop_sessions", "Open sessions.", registry=self.registry)
        self.closed = counter("voiceloop_closed", "Ended sessions by their close code.", ["code"])
        self.refused = counter(
            "voiceloop_refused", "Calls refused before they began, by the error's code.", ["code"]
        )
        ProcessCollector(registry=self.registry)  # memory, descriptors, processor time, on Linux
        self.loop_lag = histogram(
            "voiceloop_loop_lag_seconds",
            "How late the event loop woke from a timer.",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
        )

    def observe_turn(self, timeline: TurnTimeline, outcome: str) -> None:
        self.turns.labels(outcome=outcome).inc()
        for stage, ms in timeline.stages():
            self.stage.labels(stage=stage).observe(ms / 1000.0)
        if (gap_ms := timeline.gap_ms) is not None:
            self.gap.observe(gap_ms / 1000.0)

    def observe_work(self, usage: Usage, wasted_audio_ms: float) -> None:
        """What a turn cost, and how much of it nobody heard."""
        self.wasted_audio_ms.inc(wasted_audio_ms)
        n_unused = usage.n_discarded_tokens + usage.n_unheard_tokens
        self.tokens.labels(fate="generated").inc(usage.n_reply_tokens + n_unused)
        self.tokens.labels(fate="discarded").inc(usage.n_discarded_tokens)
        self.tokens.labels(fate="unheard").inc(usage.n_unheard_tokens)
        self.read_ahead_tokens.inc(usage.n_read_ahead_tokens)

    def observe_barge_in(self, action: str, delay_s: float) -> None:
        self.barge_ins.labels(action=action).inc()
        self.barge_in_delay.labels(action=action).observe(max(0.0, delay_s))


async def probe_loop_lag(
    metrics: Metrics, clock: Callable[[], float], interval_s: float = 0.1
) -> None:
    """Measure for ever how late timers fire; run one a server."""
    while True:
        due_s = clock() + interval_s
        await asyncio.sleep(interval_s)
        metrics.loop_lag.observe(max(0.0, clock() - due_s))
