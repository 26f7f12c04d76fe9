from __future__ import annotations

import numpy as np

from clients.connection import RATE_HZ
from clients.talk.speaker import MAX_QUEUED_S, Speaker


def block(value: int, n: int) -> np.ndarray:
    return np.full(n, value, dtype=np.int16)


def test_audio_is_played_in_order_and_padded_with_silence() -> None:
    speaker = Speaker()
    speaker.push("a", block(1, 3))
    speaker.push("a", block(2, 3))
    assert list(speaker.take(4)) == [1, 1, 1, 2]
    assert list(speaker.take(4)) == [2, 2, 0, 0]
    assert speaker.idle


def test_each_item_is_counted_from_its_own_start() -> None:
    speaker = Speaker()
    speaker.push("a", block(1, RATE_HZ))
    speaker.take(RATE_HZ)
    speaker.push("b", block(2, RATE_HZ))
    interrupted = speaker.flush()
    assert interrupted is not None
    assert (interrupted.item_id, interrupted.played_ms) == ("b", 0.0)


def test_what_exceeds_the_bound_is_dropped() -> None:
    speaker = Speaker()
    for _ in range(int(MAX_QUEUED_S) + 5):
        speaker.push("a", block(1, RATE_HZ))
    n_played = 0
    while not speaker.idle:
        speaker.take(RATE_HZ)
        n_played += 1
    assert n_played == MAX_QUEUED_S
