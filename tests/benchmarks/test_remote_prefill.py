"""The benchmark of reading ahead: what its stub makes a caller wait for, what counts as hidden."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.remote_prefill import STUB_BASE_MS, VARIANTS, Stub, hidden_percent

pytestmark = pytest.mark.virtual_time


def test_hidden_is_the_share_of_the_wait_above_the_floor() -> None:
    found = dict(zip(VARIANTS, ([155.0], [35.0], [5.0]), strict=True))
    assert hidden_percent(found) == pytest.approx(80.0)
    assert hidden_percent({**found, "as it comes": [5.0]}) is None
    assert hidden_percent({**found, "read ahead": []}) is None


async def test_the_stub_reads_what_it_has_not_cached_and_writes_a_word_at_a_time() -> None:
    loop, stub = asyncio.get_running_loop(), Stub(100.0, 10.0, "Four dollars, please.")
    arrived_ms = []
    for n_cached in (0, 5):
        began_s = loop.time()
        async for _ in stub._lines("0123456789", n_cached):
            arrived_ms.append(round(1000 * (loop.time() - began_s) - STUB_BASE_MS))
    assert arrived_ms == [100, 110, 120, 120, 50, 60, 70, 70]  # the last: that it is done
