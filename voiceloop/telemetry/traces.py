"""Each call as a trace of OpenTelemetry: the call, its turns, and the stages of each turn.

Owns the spans. They are built when a turn is over, from its record, so that a caller never waits
for one; the official SDK sends them from a thread of its own, holds a bounded number, and drops
what it cannot send. No word of a call is in them unless the operator asks for it, and then under
``voiceloop.pii.``, which a collector can strip.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import UNSET

from voiceloop.errors import MissingExtra
from voiceloop.telemetry.record import STAGES, TurnRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

SERVICE = "voiceloop"
NS = 1e9


class CallTrace:
    """One call's; this one tells nobody."""

    def turn(self, record: TurnRecord) -> None: ...

    def end(self, close_code: int) -> None: ...


class Traces:
    """One server's; these are where nobody collects any."""

    def begin(self, call_id: str) -> CallTrace:
        return CallTrace()

    def close(self) -> None:
        """Send what is left; may block for as long as the collector takes."""


def open_traces(url: str, clock: Callable[[], float], *, with_words: bool) -> Traces:
    """Traces that are sent to this URL by OTLP over HTTP. Raises: MissingExtra."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtra(
            "traces.url: expected OpenTelemetry, found none: pip install 'voiceloop[otel]'"
        ) from error
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url)))
    return SdkTraces(provider, clock, with_words=with_words)


class SdkTraces(Traces):
    """Traces by the SDK. clock: of the records' marks, in seconds."""

    def __init__(
        self, provider: TracerProvider, clock: Callable[[], float], *, with_words: bool
    ) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE)
        self._clock = clock
        self._with_words = with_words

    def begin(self, call_id: str) -> CallTrace:
        return SdkCallTrace(self._tracer, call_id, self._clock, with_words=self._with_words)

    def close(self) -> None:
        self._provider.shutdown()


class SdkCallTrace(CallTrace):
    """One call's spans."""

    def __init__(
        self, tracer: Tracer, call_id: str, clock: Callable[[], float], *, with_words: bool
    ) -> None:
        now_s = clock()
        self._since_epoch_ns = time.time_ns() - int(now_s * NS)  # of the clock's zero
        self._tracer = tracer
        self._clock = clock
        self._with_words = with_words
        self._call_id = call_id
        self._call = tracer.start_span("voiceloop.call", start_time=self._ns(now_s))
        self._call.set_attribute("gen_ai.conversation.id", call_id)

    def turn(self, record: TurnRecord) -> None:
        """The turn, and a span of each stage from one mark to the next."""
        marks = record.marks
        if not marks:
            return
        first_s, last_s = min(marks.values()), max(marks.values())
        span = self._begin("voiceloop.turn", self._call, first_s)
        self._describe(span, record)
        before_s: float | None = None
        for mark, stage in STAGES:
            at_s = marks.get(mark)
            if at_s is None:
                continue
            if before_s is not None and at_s > before_s:
                part = self._begin(f"voiceloop.{stage.replace(' ', '_')}", span, before_s)
                part.end(end_time=self._ns(at_s))
            before_s = at_s if before_s is None else max(before_s, at_s)
        span.end(end_time=self._ns(last_s))

    def end(self, close_code: int) -> None:
        self._call.set_attribute("voiceloop.close_code", close_code)
        self._call.end(end_time=self._ns(self._clock()))

    def _describe(self, span: Span, record: TurnRecord) -> None:
        end, usage = record.end, record.end.usage
        told: dict[str, str | bool | int | float | None] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.conversation.id": self._call_id,
            "gen_ai.usage.input_tokens": usage.n_prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.n_cached_tokens,
            "gen_ai.usage.output_tokens": usage.n_reply_tokens + usage.n_unheard_tokens,
            "voiceloop.turn_id": record.turn_id,
            "voiceloop.outcome": end.outcome,
            "voiceloop.was_interrupted": end.outcome == "cancelled",
            "voiceloop.gap_ms": record.gap_ms,
            "voiceloop.answer_ms": record.answer_ms,
            "voiceloop.ttft_ms": usage.ttft_ms,
            "voiceloop.discarded_tokens": usage.n_discarded_tokens,
        }
        if (end_of_turn := record.facts.endpoint) is not None:
            for name in ("reason", "needed_ms", "silence_ms", "why"):
                if (value := getattr(end_of_turn, name)) is not UNSET:
                    told[f"voiceloop.wait.{name}"] = value
        told["voiceloop.cut"] = record.facts.cut
        told["voiceloop.cut_over_ms"] = record.facts.cut_over_ms
        if speakers := record.facts.speakers:
            told["voiceloop.models"] = ", ".join(one.model for one in speakers)
            told["voiceloop.route"] = ", ".join(one.reason for one in speakers)
            told["voiceloop.has_opener"] = record.facts.opener is not None
            if (draft := record.facts.draft) is not None:
                told["voiceloop.verified_tokens"] = draft.n_kept
        if self._with_words:
            told["voiceloop.pii.heard"], told["voiceloop.pii.said"] = end.heard, end.said
        for name, value in told.items():
            if value is not None:
                span.set_attribute(name, value)

    def _begin(self, name: str, parent: Span, at_s: float) -> Span:
        from opentelemetry.trace import set_span_in_context

        context = set_span_in_context(parent)
        return self._tracer.start_span(name, context=context, start_time=self._ns(at_s))

    def _ns(self, at_s: float) -> int:
        return self._since_epoch_ns + int(at_s * NS)
