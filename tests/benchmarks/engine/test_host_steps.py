"""The host's steps over a null device: the pool is full, and what is asked for is served."""

import pytest

pytest.importorskip("triton", reason="the GPU path needs triton")

from benchmarks import host_steps


def test_callers_are_answered_and_heard_with_a_full_pool_and_no_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_steps, "HISTORY", 64)
    engine = host_steps.build(4)
    callers = host_steps.Callers(engine, 4)
    assert engine.tree.n_evictable > engine.pool.n_blocks // 4
    assert all(callers.step(number) >= 0.0 for number in range(120))
    told = engine.metrics()
    assert told["replies_length"] > 2 and told["staged_tokens"] > 100
    engine.check_integrity()
