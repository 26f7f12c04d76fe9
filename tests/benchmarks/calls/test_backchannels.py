"""A duck or a hold counts where it stays, from when the caller's frame has come, at every place."""

from __future__ import annotations

import numpy as np

from benchmarks.backchannels import Verdict
from benchmarks.calls.overlapping_sounds import ALIGNED_MS, Sound, in_room
from clients.report.waveform import speech_start
from voiceloop.listening.recipes.heard_turn import Listening

HZ = 16_000
TONE = (8000 * np.sin(2 * np.pi * 220 * np.arange(HZ // 2) / HZ)).astype(np.int16)
SOUND = Sound("tone", "interruption", TONE)


def verdict() -> Verdict:
    return Verdict(SOUND, onset_ms=600.0, over_ms=2000.0)


def test_what_was_taken_back_does_not_count() -> None:
    for release in ("resume", "go_on"):
        heard = verdict()
        heard.act("duck", 660.0)
        heard.act("hold", 740.0)
        heard.act(release, 1080.0)  # type: ignore[arg-type]
        assert (heard.ducked_ms, heard.held_ms) == (None, None)
        assert heard.n_ducks == 1 and heard.holds
        heard.act("hold", 1200.0)
        assert heard.n_ducks == 2
        heard.act("stop", 1400.0)
        assert (heard.ducked_ms, heard.held_ms, heard.stopped_ms) == (600.0, 600.0, 800.0)


def test_the_time_in_which_the_agent_is_quieter_is_of_all_its_ducks() -> None:
    heard = verdict()
    heard.act("duck", 660.0)
    heard.act("hold", 700.0)
    heard.act("unhold", 740.0)
    assert (heard.ducked_ms, heard.held_ms, heard.n_ducks) == (60.0, None, 1)
    heard.act("resume", 800.0)
    heard.act("duck", 1000.0)
    heard.end_duck(2000.0)
    assert heard.quieter_ms == 140.0 + 1600.0 and heard.n_ducks == 2


def test_a_stop_alone_ducks_and_holds() -> None:
    heard = verdict()
    heard.act("stop", 1000.0)
    assert (heard.ducked_ms, heard.held_ms, heard.stopped_ms) == (400.0, 400.0, 400.0)


def test_a_window_counts_from_when_its_frame_of_20_ms_has_come() -> None:
    for end_ms, since_onset_ms in ((640.0, 40.0), (672.0, 80.0), (704.0, 120.0), (736.0, 140.0)):
        heard = verdict()
        heard.act("duck", end_ms)
        assert heard.ducked_ms == since_onset_ms


def test_what_never_happened_had_not_when_the_sound_was_over() -> None:
    heard = verdict()
    assert heard.waited_ms(heard.held_ms) == 2000.0
    heard.act("hold", 740.0)
    assert heard.waited_ms(heard.held_ms) == 140.0


def test_every_sound_is_heard_at_each_place_within_the_windows() -> None:
    heard = list(in_room("tone", "noise", TONE))
    starts_ms = [1000.0 * (speech_start(sound.samples, HZ) or 0) / HZ for sound in heard]
    assert len({sound.name for sound in heard}) == len(ALIGNED_MS)
    # Speech is found in frames of 10 ms.
    for start_ms, later_ms in zip(starts_ms, ALIGNED_MS, strict=True):
        assert 0 <= 600.0 + later_ms - start_ms < 10.0


def test_a_loud_window_alone_is_lost_and_two_are_speech() -> None:
    listening = Listening()
    heard = [listening.window(32.0 * i, p) for i, p in enumerate((0.9, 0.1, 0.9, 0.9, 0.1, 0.9), 1)]
    assert heard == ["loud", "lost", "loud", "speech", "paused", "resumed"]
    assert listening.onset_ms == 64.0
