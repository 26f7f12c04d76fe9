"""When a sample came in, and how long ago the last one did."""

from __future__ import annotations

from audio.frames import RECOGNIZER_HZ
from voiceloop.listening.audio_clock import N_CHUNKS, AudioClock

CHUNK = RECOGNIZER_HZ // 50  # 20 ms


def test_a_sample_of_long_ago_arrived_no_later_than_the_oldest_chunk_known() -> None:
    now_s = [0.0]
    audio = AudioClock(lambda: now_s[0])
    for _ in range(N_CHUNKS + 10):
        now_s[0] += 1.0
        audio.advance(CHUNK)
    assert audio.arrival_s(1.0) == 11.0
