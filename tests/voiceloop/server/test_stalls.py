"""A loop that stands still says where."""

from __future__ import annotations

import asyncio
import time

import pytest

from voiceloop.server import stalls


def hold_the_loop() -> None:
    time.sleep(0.4)


async def test_a_loop_that_stands_still_has_its_stacks_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stalls, "STALLED_S", 0.1)
    monkeypatch.setattr(stalls, "LOOK_S", 0.05)
    watching = asyncio.create_task(stalls.watch_stalls())
    await asyncio.sleep(0.12)  # it runs: nothing is written
    assert "hold_the_loop" not in capfd.readouterr().err
    hold_the_loop()
    await asyncio.sleep(0.02)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert "in hold_the_loop" in capfd.readouterr().err
