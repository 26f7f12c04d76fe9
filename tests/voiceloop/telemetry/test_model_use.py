"""What the language model was used for is counted by who asked, and priced."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from voiceloop.backends import Usage
from voiceloop.operation import WorkerLoad
from voiceloop.telemetry.model_use import LONGER, PROMPT_BOUNDS, ModelUse, prompt_bucket
from voiceloop.telemetry.worker_load import WorkerCollector

ENGINE = WorkerLoad(
    "engine",
    ("engine",),
    "ready",
    busy=0.4,
    oldest_s=0.2,
    n_streams=3,
    hop_ms=0.5,
    restarts={"hung": 2},
    totals={"kv_blocks_held": 5, "drafted_tokens": 40, "accepted_tokens": 30, "steps": 9, "own": 1},
    served={
        "fault": "none",
        "model": "embedded", "weights": "int8", "kv": "bf16", "layers": "native",
        "drafter": "n-grams", "gate": "passed",
    },
)  # fmt: skip


def use(**prices: list[float]) -> tuple[ModelUse, CollectorRegistry]:
    registry = CollectorRegistry()
    return ModelUse(registry, prices), registry


def test_a_prompt_of_any_length_has_one_of_few_labels() -> None:
    labels = [prompt_bucket(n) for n in (0, 512, 513, 2048, 8192, 8193, 10**9)]
    known = [label for _, label in PROMPT_BOUNDS]
    assert labels == [known[0], known[0], known[1], known[1], known[2], LONGER, LONGER]


def test_the_times_of_a_reply_are_sliced_by_who_asked_and_the_prompt() -> None:
    model, registry = use()
    model.observe(Usage(n_prompt_tokens=600, queue_ms=2.0, ttft_ms=30.0, token_ms=4.0), "call")
    model.observe(Usage(n_prompt_tokens=60, ttft_ms=300.0), "http")
    labels = {"surface": "call", "prompt": "up to 2048"}
    value = registry.get_sample_value
    assert value("voiceloop_ttft_seconds_sum", labels) == pytest.approx(0.03)
    assert value("voiceloop_model_queue_seconds_sum", labels) == pytest.approx(0.002)
    assert value("voiceloop_token_seconds_sum", labels) == pytest.approx(0.004)
    other = {"surface": "http", "prompt": "up to 512"}
    assert value("voiceloop_ttft_seconds_sum", other) == pytest.approx(0.3)
    assert value("voiceloop_token_seconds_count", other) is None


def test_every_token_is_counted_once_and_priced() -> None:
    model, registry = use(main=[2.0, 0.5, 8.0])
    usage = Usage(
        n_prompt_tokens=1000,
        n_cached_tokens=600,
        n_reply_tokens=40,
        n_unheard_tokens=10,
        n_discarded_tokens=30,
        n_read_ahead_tokens=200,
    )
    model.observe(usage, "call")

    def counted(kind: str) -> float | None:
        labels = {"surface": "call", "kind": kind}
        return registry.get_sample_value("voiceloop_model_tokens_total", labels)

    def cost(part: str) -> float | None:
        return registry.get_sample_value("voiceloop_cost_total", {"part": part})

    kinds = ("prompt_cached", "prompt_computed", "read_ahead", "reply", "discarded")
    assert [counted(kind) for kind in kinds] == [600, 400, 200, 50, 30]
    of_million = [1e6 * (cost(kind) or 0.0) for kind in kinds]
    assert of_million == pytest.approx([300, 800, 400, 400, 240])


def test_what_has_no_price_has_no_cost() -> None:
    model, registry = use()
    model.observe(Usage(n_prompt_tokens=1000, n_reply_tokens=40), "call")
    assert not [
        s
        for family in registry.collect()
        for s in family.samples
        if s.name == "voiceloop_cost_total"
    ]


def test_workers_are_told_as_they_are_when_somebody_asks() -> None:
    registry = CollectorRegistry()
    workers: list[WorkerLoad] = []
    registry.register(WorkerCollector(lambda: workers))
    value = registry.get_sample_value
    assert value("voiceloop_worker_up", {"worker": "engine"}) is None
    workers.append(ENGINE)
    of = {"worker": "engine"}
    assert value("voiceloop_worker_up", of) == 1
    assert value("voiceloop_worker_busy_ratio", of) == 0.4
    assert value("voiceloop_worker_queue_age_seconds", of) == 0.2
    assert value("voiceloop_worker_streams", of) == 3
    assert value("voiceloop_worker_hop_seconds", of) == 0.0005
    assert value("voiceloop_worker_restarts_total", {**of, "cause": "hung"}) == 2
    assert value("voiceloop_engine_tokens_total", {**of, "kind": "accepted"}) == 30
    assert value("voiceloop_kv_blocks", {**of, "state": "held"}) == 5
    assert value("voiceloop_engine_steps_total", of) == 9
    assert value("voiceloop_engine_info", {**of, **ENGINE.served}) == 1
    workers[0] = WorkerLoad("engine", ("engine",), "restarting")
    assert value("voiceloop_worker_up", of) == 0
    assert value("voiceloop_engine_info", {**of, **ENGINE.served}) is None
