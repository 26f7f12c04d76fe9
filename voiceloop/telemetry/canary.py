"""A canary beside what it is tried on, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from voiceloop.canary.judge import compare
from voiceloop.canary.trial import Trial, TrialState
from voiceloop.canary.turns import Measure, Sums, TurnFigures, Turns
from voiceloop.telemetry.record import TurnRecord


class CanaryCollector(Collector):
    """trial: as it is at each scrape."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    def describe(self) -> list[Metric]:
        return list(self._families({}))

    def collect(self) -> Iterator[Metric]:
        report = self._trial.report()
        yield from self._families(report.turns if report is not None else {})

    def _families(self, turns: Turns) -> Iterator[Metric]:
        state = GaugeMetricFamily(
            "voiceloop_canary_state",
            "What became of a canary: 1 in the state that holds.",
            labels=["state"],
        )
        for each in TrialState:
            state.add_metric([each.value.replace(" ", "_")], float(each is self._trial.state))
        counted = CounterMetricFamily(
            "voiceloop_canary_turns", "Turns counted while a canary is tried.", labels=["variant"]
        )
        mean = GaugeMetricFamily(
            "voiceloop_canary_mean",
            "Mean of a measure over the turns of a variant.",
            labels=["variant", "measure"],
        )
        apart = GaugeMetricFamily(
            "voiceloop_canary_difference",
            "Bounds of how far the canary's mean is from the baseline's; they hold at all times.",
            labels=["measure", "bound"],
        )
        for variant, measures in turns.items():
            counted.add_metric([variant.value], measures.get(Measure.FAILURES, Sums()).n)
            for measure, sums in measures.items():
                if sums.mean is not None:
                    mean.add_metric([variant.value, measure.value], sums.mean)
        for one in compare(turns):
            for bound, value in (("low", one.low), ("high", one.high)):
                if value is not None:
                    apart.add_metric([one.measure.value, bound], value)
        yield from (state, counted, mean, apart)


def figures_of(record: TurnRecord) -> TurnFigures:
    """Return what a reply that is over counts as where a canary is tried."""
    end, usage = record.end, record.end.usage
    n_written = usage.n_reply_tokens + usage.n_unheard_tokens
    return TurnFigures(
        gap_ms=record.gap_ms,
        has_failed=end.outcome == "failed",
        n_tokens=n_written if usage.n_prompt_tokens else None,
        n_tool_calls=end.n_tool_calls,
        n_wrong_tool_calls=end.n_wrong_tool_calls,
        token_ms=usage.token_ms or None,
    )
