"""Whose sound comes out of a line, where the news of it comes beside the sound."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.webrtc.ear import EARLY_S, Ear
from clients.recording import Samples

LOUD: Samples = np.full(480, 1000, np.int16)


@pytest.mark.parametrize(("before_s", "is_its"), [(0.5 * EARLY_S, True), (2.0, False)])
async def test_an_answers_sound_comes_shortly_before_the_news_of_it(
    before_s: float, is_its: bool
) -> None:
    ear, told_s = Ear("http://line.test"), 10.0
    ear.came_out(told_s - before_s, LOUD)  # a greeting's last, where nobody sat beside the call
    ear.take({"type": "output_audio_buffer.started", "response_id": "answer"}, told_s)
    ear.came_out(told_s + 0.02, LOUD)
    told = [ear._queue.get_nowait() for _ in range(ear._queue.qsize())]
    heard_s = [one.at for one in told if one is not None and one.type.endswith("audio.delta")]
    assert heard_s == [told_s - before_s] * is_its + [told_s + 0.02]
