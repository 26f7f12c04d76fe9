"""The processes that hold models, as Prometheus reads them: at each scrape, what they say then."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from voiceloop.operation import WorkerLoad

# What an engine counts, and the label of its kind; a total that is not here is not told.
TOKENS = {
    "prompt_tokens": "prompt",
    "cached_tokens": "cached",
    "output_tokens": "reply",
    "staged_tokens": "staged",
    "speculated_tokens": "preemptive",
    "adopted_tokens": "adopted",
    "discarded_tokens": "discarded",
    "drafted_tokens": "drafted",
    "accepted_tokens": "accepted",
}
BLOCKS = {
    "kv_blocks_held": "held",
    "kv_blocks_shared": "cached",
    "kv_blocks_free": "free",
}


SERVED = ("model", "weights", "kv", "layers", "drafter", "gate", "fault")


class WorkerCollector(Collector):
    """workers: their state at this moment."""

    def __init__(self, workers: Callable[[], Sequence[WorkerLoad]]) -> None:
        self._workers = workers

    def describe(self) -> list[Metric]:
        """Told without asking the workers: a registry asks when it is built."""
        return list(self._families(()))

    def collect(self) -> Iterator[Metric]:
        yield from self._families(self._workers())

    def _families(self, workers: Sequence[WorkerLoad]) -> Iterator[Metric]:
        yield self._gauge(
            workers, "up", "Whether a worker takes new work.", lambda one: one.state == "ready"
        )
        yield self._gauge(
            workers, "busy_ratio", "Share of its time that a worker computes.", lambda one: one.busy
        )
        yield self._gauge(
            workers,
            "queue_age_seconds",
            "How long the oldest thing that a caller waits for has had no answer.",
            lambda one: one.oldest_s,
        )
        yield self._gauge(
            workers, "streams", "Open streams of a worker.", lambda one: one.n_streams
        )
        yield self._gauge(
            workers,
            "hop_seconds",
            "The last event's way from the worker to the gateway.",
            lambda one: one.hop_ms / 1000.0,
        )
        restarts = CounterMetricFamily(
            "voiceloop_worker_restarts",
            "Times that a worker was started anew, by cause.",
            labels=["worker", "cause"],
        )
        tokens = CounterMetricFamily(
            "voiceloop_engine_tokens",
            "Tokens that an engine has computed or taken over, by kind.",
            labels=["worker", "kind"],
        )
        steps = CounterMetricFamily(
            "voiceloop_engine_steps", "Steps that an engine has made.", labels=["worker"]
        )
        blocks = GaugeMetricFamily(
            "voiceloop_kv_blocks",
            "Blocks of the KV cache: held by conversations, cached, free.",
            labels=["worker", "state"],
        )
        served = GaugeMetricFamily(
            "voiceloop_engine_info",
            "1; the labels say what a language model is served with.",
            labels=["worker", *SERVED],
        )
        for one in workers:
            if one.served:
                served.add_metric([one.name, *(one.served.get(name, "") for name in SERVED)], 1)
            for cause, n_times in one.restarts.items():
                restarts.add_metric([one.name, cause], n_times)
            for name, kind in TOKENS.items():
                if name in one.totals:
                    tokens.add_metric([one.name, kind], one.totals[name])
            for name, state in BLOCKS.items():
                if name in one.totals:
                    blocks.add_metric([one.name, state], one.totals[name])
            if "steps" in one.totals:
                steps.add_metric([one.name], one.totals["steps"])
        yield from (restarts, tokens, steps, blocks, served)

    def _gauge(
        self,
        workers: Sequence[WorkerLoad],
        name: str,
        told: str,
        value: Callable[[WorkerLoad], float],
    ) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"voiceloop_worker_{name}", told, labels=["worker"])
        for one in workers:
            family.add_metric([one.name], value(one))
        return family
