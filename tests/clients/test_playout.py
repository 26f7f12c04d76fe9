"""The modelled loudspeaker: when received audio would be heard, and what a flush leaves of it."""

from __future__ import annotations

import numpy as np
import pytest

from clients.playout import Playout
from clients.recording import Samples

RATE_HZ = 1000  # a sample is a millisecond


def loud(ms: int) -> Samples:
    return np.full(ms, 5000, dtype=np.int16)


def test_playing_starts_one_buffer_after_the_first_arrival() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    assert playout.first_audible_at() == pytest.approx(5.040)
    assert playout.idle_at == pytest.approx(5.140)


def test_audio_that_comes_in_time_continues_without_a_break() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    playout.push("a", loud(100), 5.12)
    assert playout.idle_at == pytest.approx(5.240)
    assert not playout.dry_at


def test_audio_that_comes_too_late_is_an_underrun_and_buffers_again() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    playout.push("a", loud(100), 5.3)
    assert playout.idle_at == pytest.approx(5.440)
    assert playout.dry_at == [pytest.approx(5.140)]


def test_the_next_item_after_a_pause_is_no_underrun() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    playout.push("b", loud(100), 9.0)
    assert not playout.dry_at


def test_a_flush_cuts_at_the_moment_and_says_what_was_heard() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    playout.push("a", loud(100), 5.0)
    interrupted = playout.flush(5.190)
    assert interrupted is not None
    assert interrupted.item_id == "a"
    assert interrupted.played_ms == pytest.approx(150)
    assert playout.last_audible_at() == pytest.approx(5.190)
    assert playout.idle_at == pytest.approx(5.190)


def test_audio_of_the_old_item_after_a_flush_is_heard_and_so_is_measured() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(100), 5.0)
    playout.flush(5.1)
    playout.push("a", loud(50), 5.11)
    assert playout.last_audible_at(frozenset({"a"})) == pytest.approx(5.200)


def test_render_lays_what_was_heard_on_the_clock() -> None:
    playout = Playout(RATE_HZ)
    playout.push("a", loud(10), 5.0)
    track = playout.render(5.0, 100)
    assert list(np.flatnonzero(track)) == list(range(40, 50))
    assert len(playout.render(5.045, 3)) == 3
    assert np.count_nonzero(playout.render(5.045, 100)) == 5
