"""The counters of a server, for Prometheus.

Owns the metrics of one server over all its sessions. What each means to whoever runs the server
stands in OPERATIONS.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from msgspec import UNSET
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

from voiceloop.backends import Usage
from voiceloop.canary.trial import Trial
from voiceloop.operation import NO_CANARY, CanarySettings, Slo, WorkerLoad
from voiceloop.telemetry.canary import CanaryCollector
from voiceloop.telemetry.model_use import ModelUse
from voiceloop.telemetry.owed_answer import OwedAnswer
from voiceloop.telemetry.record import Mark, TurnRecord
from voiceloop.telemetry.worker_load import WorkerCollector

_STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 2.5, 5.0)
# What is promised of a server with faults stands among them: 1.5, 3 and 5 s.
_SILENCE_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 8.0, 15.0)
# Bounds stand at 120 and 250 ms: a percentile between two marks 20 ms apart is known well enough.
_BARGE_IN_BUCKETS = (0.02, 0.04, 0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.2, 0.25, 0.3, 0.5, 1.0, 2.0)

MOST_ANSWERS = 1024  # between two looks
SILENCES = ("hold", "stop")  # what a caller hears as the agent's silence


class Metrics:
    """The counters of one server, over all its sessions."""

    def __init__(
        self,
        promised: Slo | None = None,
        prices: Mapping[str, Sequence[float]] = MappingProxyType({}),
        canary: CanarySettings = NO_CANARY,
        workers: Callable[[], Sequence[WorkerLoad]] = tuple,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(WorkerCollector(workers))
        self._promised = promised if promised is not None else Slo()
        self._answers_s = deque[float](maxlen=MOST_ANSWERS)
        self.trial = Trial(canary, self._promised)
        self.registry.register(CanaryCollector(self.trial))
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.model = ModelUse(self.registry, prices)
        self.answers = histogram(
            "voiceloop_answer_seconds",
            "From a question to a worker, while a caller waits, to the first of its answer.",
            ["ask"],
            buckets=_STAGE_BUCKETS,
        )
        self.recordings = counter(
            "voiceloop_recordings_total", "Calls that were kept, by how that ended.", ["outcome"]
        )
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
        self.agent_turns = counter(
            "voiceloop_agent_turns",
            "Replies of each of several agents, by how they ended.",
            ["agent", "outcome"],
        )
        self.agent_gap = histogram(
            "voiceloop_agent_gap_seconds",
            "voiceloop_gap_seconds of each of several agents.",
            ["agent"],
            buckets=_STAGE_BUCKETS,
        )
        self.turn_silent = histogram(
            "voiceloop_turn_silent_seconds",
            "From an answer that is owed to the first sound, the fallback's too, or to whatever "
            "else ends the silence.",
            buckets=_SILENCE_BUCKETS,
        )
        self.turns = counter("voiceloop_turns", "Replies by how they ended.", ["outcome"])
        self.answered_by = counter(
            "voiceloop_answered_by",
            "Replies by the language model that ended them, where the server has several, and why "
            "it did: session, route, effort, quota, load, head, default, link or failed.",
            ["model", "reason"],
        )
        self.openers = counter(
            "voiceloop_openers", "Replies that an opener of the small model began."
        )
        self.verified = counter(
            "voiceloop_verified_tokens",
            "Tokens that the small model drafted for the large one, by fate: kept, dropped.",
            ["fate"],
        )
        self.kept = counter(
            "voiceloop_promises",
            "Answers and barge-ins against what `[slo]` promises: kept, late or failed.",
            ["promise", "outcome"],
        )
        self.barge_ins = counter(
            "voiceloop_barge_ins",
            "What speech over the agent came to: duck, hold, stop, go_on or resume.",
            ["action"],
        )
        self.cuts = counter(
            "voiceloop_cuts",
            "Callers answered before they had finished: soft, the answer was taken back; hard.",
            ["kind"],
        )
        self.cut_over = histogram(
            "voiceloop_cut_over_seconds",
            "For how long the agent was heard over a caller whom it had cut, until it fell silent.",
            ["kind"],
            buckets=_BARGE_IN_BUCKETS,
        )
        self.waits = counter(
            "voiceloop_waits",
            "Turns left unanswered: the agent was asked to wait, or somebody else was spoken to.",
        )
        self.judged_ends = counter(
            "voiceloop_judged_ends",
            "Turns that ended in a pause, by what judged that: words, voice, both, silence alone.",
            ["judges"],
        )
        self.late_judgements = counter(
            "voiceloop_late_judgements",
            "Turns that ended before a judge of the end had answered: words or voice.",
            ["judge"],
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
        self.draft_tokens = counter(
            "voiceloop_draft_tokens",
            "Tokens guessed by a drafter and verified, by whether they stood.",
            ["fate"],
        )
        self.drafts = counter(
            "voiceloop_drafts", "Replies made ahead of the end of the caller's turn.", ["fate"]
        )
        self.tool_calls = counter(
            "voiceloop_tool_calls",
            "Calls of tools that the server made, by their end.",
            ["fate"],
        )
        self.retrievals = counter(
            "voiceloop_retrievals",
            "Turns of agents with documents by what was found for them: hidden (before the turn "
            "had ended), waited, late, failed, or none.",
            ["fate"],
        )
        self.slides = counter(
            "voiceloop_window_slides",
            "Times that the window of a long call moved on: in silence, or in a turn.",
            ["when"],
        )
        self.wasted_audio_ms = counter(
            "voiceloop_wasted_audio_ms", "Synthesized speech that was never sent."
        )
        self.sessions = Gauge("voiceloop_sessions", "Open sessions.", registry=self.registry)
        self.tasks = Gauge(
            "voiceloop_tasks", "Tasks of the gateway's event loop.", registry=self.registry
        )
        self.resumed = counter("voiceloop_resumed", "Calls that went on here by a resume ticket.")
        self.closed = counter("voiceloop_closed", "Ended sessions by their close code.", ["code"])
        self.refused = counter(
            "voiceloop_refused", "Calls refused before they began, by the error's code.", ["code"]
        )
        self.quota_spent = counter(
            "voiceloop_quota_spent",
            "Times that a part of a key's quota kept a call, a request, a reply made ahead or a "
            "tool's call from being.",
            ["what"],
        )
        self.ladder_level = Gauge(
            "voiceloop_ladder_level",
            "Level of load: 0 normal, 1 busy, 2 full: no new calls.",
            registry=self.registry,
        )
        self.ladder_moves = counter(
            "voiceloop_ladder_moves", "Times that a level of load was come to.", ["level"]
        )
        self.room = Gauge(
            "voiceloop_room_calls",
            "Calls that may be in at once, as this machine has shown so far.",
            registry=self.registry,
        )
        ProcessCollector(registry=self.registry)  # memory, descriptors, processor time, on Linux
        self.headroom = Gauge(
            "voiceloop_headroom_ratio",
            "Share of what this server can carry that is still free.",
            registry=self.registry,
        )
        self.loop_lag = histogram(
            "voiceloop_loop_lag_seconds",
            "How late the event loop woke from a timer.",
            buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0),
        )

    def owed_answer(self, clock: Callable[[], float]) -> OwedAnswer:
        """The silences of one call."""
        return OwedAnswer(self.turn_silent.observe, clock)

    def observe_recording(self, outcome: str) -> None:
        """A recording is over: kept, degraded, failed, deleted. From the writer's thread."""
        self.recordings.labels(outcome).inc()

    def observe_turn(self, record: TurnRecord) -> None:
        end = record.end
        self.turns.labels(outcome=end.outcome).inc()
        self.observe_work(end.usage, end.wasted_audio_ms, end.used)
        if (speakers := record.facts.speakers) and end.outcome != "cancelled":
            last = speakers[-1]
            reason = last.reason.partition(" ")[0]  # of several rules there is no label each
            self.answered_by.labels(model=last.model, reason=reason).inc()
        if record.facts.opener is not None:
            self.openers.inc()
        if (endpoint := record.facts.endpoint) is not None:
            if endpoint.why is not UNSET:  # in a pause, by evidence
                told = {"words": endpoint.p_end, "voice": endpoint.p_voice}
                judges = " and ".join(name for name, p in told.items() if p is not None)
                self.judged_ends.labels(judges=judges or "silence alone").inc()
            for judge in endpoint.late or ():
                self.late_judgements.labels(judge=judge).inc()
        if (draft := record.facts.draft) is not None and draft.n_kept is not None:
            self.verified.labels(fate="kept").inc(draft.n_kept)
            self.verified.labels(fate="dropped").inc(draft.n_tokens - draft.n_kept)
        for call in record.facts.tools or ():
            self.tool_calls.labels(fate=call.fate).inc()
        for stage, ms in record.stages():
            self.stage.labels(stage=stage).observe(ms / 1000.0)
        if (lookup := record.facts.retrieval) is not None:
            self.retrievals.labels(fate=lookup.fate).inc()
        if end.window is not None:
            self.slides.labels(when=end.window.slid.split()[-1]).inc()
        if (gap_ms := record.gap_ms) is not None:
            self.gap.observe(gap_ms / 1000.0)
        if (answer_ms := record.answer_ms) is not None:
            self._answers_s.append(answer_ms / 1000.0)
        if Mark.SPEECH_END in record.marks:
            self._count_promise(
                "gap", gap_ms, self._promised.gap_ms, has_failed=end.outcome == "failed"
            )

    def observe_agent_turn(self, agent: str, record: TurnRecord) -> None:
        """A turn of one of several agents, which `observe_turn` is told of too."""
        self.agent_turns.labels(agent, record.end.outcome).inc()
        if (gap_ms := record.gap_ms) is not None:
            self.agent_gap.labels(agent).observe(gap_ms / 1000.0)

    def observe_cut(self, call_id: str, kind: str, over_ms: float) -> None:
        """The agent began before this caller had ended; kind: soft or hard. over_ms: heard over
        what the caller went on to say.
        """
        self.cuts.labels(kind=kind).inc()
        self.cut_over.labels(kind=kind).observe(over_ms / 1000.0)
        self.trial.observe_cut(call_id)

    def take_answers_s(self) -> list[float]:
        """`TurnRecord.answer_ms` of the turns since this was last called, in seconds."""
        taken = list(self._answers_s)
        self._answers_s.clear()
        return taken

    def _count_promise(
        self, promise: str, ms: float | None, most_ms: float, *, has_failed: bool = False
    ) -> None:
        if ms is None and not has_failed:
            return  # it was never to be heard: a caller who went on, or who hung up
        is_kept = ms is not None and ms <= most_ms
        outcome = "failed" if has_failed else "kept" if is_kept else "late"
        self.kept.labels(promise=promise, outcome=outcome).inc()

    def observe_work(
        self, usage: Usage, wasted_audio_ms: float, used: Mapping[str, Usage] | None = None
    ) -> None:
        """Count the cost of a turn, and how much of it nobody heard. used: as of
        `ModelUse.observe`.
        """
        self.model.observe(usage, "call", used)
        self.wasted_audio_ms.inc(wasted_audio_ms)
        n_unused = usage.n_discarded_tokens + usage.n_unheard_tokens
        self.tokens.labels(fate="generated").inc(usage.n_reply_tokens + n_unused)
        self.tokens.labels(fate="discarded").inc(usage.n_discarded_tokens)
        self.tokens.labels(fate="unheard").inc(usage.n_unheard_tokens)
        self.read_ahead_tokens.inc(usage.n_read_ahead_tokens)
        n_rejected = max(0, usage.n_drafted_tokens - usage.n_accepted_tokens)
        self.draft_tokens.labels(fate="accepted").inc(usage.n_accepted_tokens)
        self.draft_tokens.labels(fate="rejected").inc(n_rejected)

    def observe_barge_in(self, action: str, delay_s: float) -> None:
        self.barge_ins.labels(action=action).inc()
        self.barge_in_delay.labels(action=action).observe(max(0.0, delay_s))
        if action in SILENCES:
            self._count_promise("barge_in", 1000.0 * delay_s, self._promised.barge_in_ms)
