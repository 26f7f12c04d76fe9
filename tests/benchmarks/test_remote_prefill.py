"""The benchmark of reading ahead: what its stub makes a caller wait for, what counts as hidden."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.remote_prefill import STUB_BASE_MS, STUB_PREFILL_MS, VARIANTS, Stub, hidden_percent

pytestmark = pytest.mark.virtual_time


async def waited_ms(stub: Stub, prompt: str, cached: int) -> float:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async for _ in stub._lines(prompt, cached):
        pass
    return 1000 * (loop.time() - began_s)


async def test_the_stub_takes_150_ms_for_a_prompt_and_less_for_what_it_has_read() -> None:
    stub, prompt = Stub(), "x" * 1000
    whole_ms = STUB_BASE_MS + STUB_PREFILL_MS
    assert await waited_ms(stub, prompt, 0) == pytest.approx(whole_ms, abs=0.1)
    rest_ms = STUB_BASE_MS + STUB_PREFILL_MS / 10
    assert await waited_ms(stub, prompt, 900) == pytest.approx(rest_ms, abs=0.1)


def test_hidden_is_the_share_of_the_wait_above_the_floor() -> None:
    found = dict(zip(VARIANTS, ([155.0], [35.0], [5.0]), strict=True))
    assert hidden_percent(found) == pytest.approx(80.0)
    assert hidden_percent({**found, "as it comes": [5.0]}) is None
    assert hidden_percent({**found, "read ahead": []}) is None
