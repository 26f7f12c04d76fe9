"""What the panel of manners makes of a call, from sound alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.data_folder import data_folder
from benchmarks.manners.__main__ import Measured, bars_of, figures_of
from benchmarks.manners.call import EchoLine, Outcome
from benchmarks.manners.sounds import PARTS, Part, trials
from benchmarks.peers.call import Heard, MeasuredTurn
from clients.connection import RATE_HZ
from clients.playout import Playout
from clients.recording import Samples

ANSWERED = MeasuredTurn("turn", "plain", 300.0, False, True)


def test_an_agent_that_says_all_of_its_answer_has_ignored_the_sound() -> None:
    shares = {0.3: (False, True), 0.9: (True, False), 1.0: (True, False), 1.3: (False, False)}
    for share, told in shares.items():
        outcome = Outcome("bystander", "one", share, None)
        assert (outcome.ignored, outcome.yielded) == told


def test_each_figure_is_of_its_own_part_and_bars_of_what_was_played() -> None:
    outcomes = [
        Outcome("interruption", "a", 0.2, 180.0), Outcome("interruption", "b", 1.0, None),
        Outcome("echo", "c", 1.0, None), Outcome("echo", "d", 0.4, 300.0),
    ]  # fmt: skip
    cut = replace(ANSWERED, gap_ms=None, cut=True, over_ms=140.0)
    soft = replace(ANSWERED, gap_ms=None, cut=True, over_ms=60.0)
    figures = figures_of(Measured([ANSWERED, cut, soft, ANSWERED], outcomes))
    assert (figures["responds"], figures["interrupts"], figures["cut"]) == (100.0, 25.0, 50.0)
    assert (figures["yields"], figures["echo"], figures["aside"]) == (50.0, 50.0, None)
    assert [bar.name for bar in bars_of(figures)] == [
        "responds", "interrupts the caller", "yields", "silent after, p95", "ignores: echo",
    ]  # fmt: skip


class Silence:
    """A line that keeps what is sent."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.sent: list[Samples] = []

    async def append_audio(self, samples: Samples) -> None:
        self.sent.append(samples)

    async def heard(self) -> AsyncIterator[Heard]:
        if self.told:
            yield Heard(0.0, None)

    async def close(self) -> None:
        pass


def test_the_microphone_hears_the_loudspeaker_twenty_decibels_softer_and_late() -> None:
    line = Silence()
    echo = EchoLine(line)
    echo.loudspeaker = Playout(RATE_HZ)
    rng = np.random.default_rng(0)
    said = (rng.standard_normal(2 * RATE_HZ) * 3000).astype(np.int16)
    echo.loudspeaker.push("agent", said, monotonic() - 1.0)
    frame = np.zeros(480, np.int16)
    asyncio.run(echo.append_audio(frame))
    echo.delay_ms = 100.0
    asyncio.run(echo.append_audio(frame))
    assert not line.sent[0].any()
    level = 20 * np.log10(np.std(line.sent[1].astype(float)) / 3000.0)
    assert -22.0 < level < -16.0


@pytest.mark.skipif(
    not (data_folder() / "speech" / "commands.jsonl").is_file(), reason="no shared data"
)
def test_no_recording_is_in_two_parts_and_the_same_come_every_time() -> None:
    people: tuple[Part, ...] = ("interruption", "bystander", "television")
    names = [trial.name for part in people for trial in trials(part, 20, data_folder())]
    assert len(names) == len(set(names)) == 60
    for part in set(PARTS) - {"backchannel", "aside"}:
        once, again = (trials(part, 3, data_folder()) for _ in range(2))
        assert all(np.array_equal(a.samples, b.samples) for a, b in zip(once, again, strict=True))
