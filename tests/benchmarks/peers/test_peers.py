"""The parts of the peer comparison that decide its figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peers.__main__ import (
    bars_of,
    figures_of,
    judged_of,
)
from benchmarks.peers.call import (
    Heard,
    MeasuredTurn,
    faded_in_s,
)
from benchmarks.peers.stub_services import spoken
from clients.connection import RATE_HZ


def turns(gap_ms: float | None, *, cut: bool = False) -> list[MeasuredTurn]:
    interrupted = MeasuredTurn("b", "barge-in", None, False, True, 200.0, 240.0)
    kinds = ("plain", "hesitation")
    return [MeasuredTurn("a", kind, gap_ms, cut, True) for kind in kinds] + [interrupted]


def test_the_better_peer_sets_the_bar() -> None:
    figures = {
        "voiceloop": figures_of(turns(220.0)),
        "pipecat": figures_of(turns(340.0)),
        "livekit-tuned": figures_of(turns(310.0)),
    }
    missed = {bar.name for bar in bars_of(figures, "voiceloop") if not bar.holds}
    assert missed == {"voiceloop: gap p50, 0.7 of the better peer"}
    figures["livekit-tuned"] = figures_of(turns(320.0))
    assert all(bar.holds for bar in bars_of(figures, "voiceloop"))


def test_a_cut_is_hard_where_the_agent_is_heard_for_long_once_the_caller_goes_on() -> None:
    over_ms = (None, 0.0, 250.0, 251.0)
    cuts = [MeasuredTurn("a", "plain", None, True, True, over_ms=ms) for ms in over_ms]
    own = figures_of([*cuts, *turns(200.0)])["plain"]
    assert own["cut"] == 80.0 and own["cut_hard"] == 20.0


def test_every_variant_is_held_against_the_same_bars() -> None:
    figures = {
        "voiceloop": figures_of(turns(340.0)),
        "voiceloop-eager": figures_of(turns(210.0, cut=False)),
        "pipecat": figures_of(turns(320.0)),
    }
    assert judged_of(tuple(reversed(figures))) == ["voiceloop", "voiceloop-eager"]
    assert judged_of(("pipecat",)) == []
    default, eager = (bars_of(figures, name) for name in judged_of(tuple(figures)))
    assert all(bar.holds for bar in eager)
    assert not all(bar.holds for bar in default)
    assert [bar.name.removeprefix("voiceloop: ") for bar in default] == [
        bar.name.removeprefix("voiceloop-eager: ") for bar in eager
    ]


@pytest.mark.parametrize(("fade_ms", "later_ms"), [(0, 0.0), (100, 50.0)])
def test_a_first_sound_that_fades_in_is_heard_where_it_is_6_db_down(
    fade_ms: int, later_ms: float
) -> None:
    """In pieces of 40 ms, of which the first three arrive at once; something was dropped before."""
    sound = np.frombuffer(spoken("Certainly, that is noted."), "<i2").astype(np.float64)
    n_fade = RATE_HZ * fade_ms // 1000
    sound[:n_fade] *= 0.5 - 0.5 * np.cos(np.pi * np.arange(n_fade) / max(n_fade, 1))
    n_piece = RATE_HZ * 40 // 1000
    pieces = [
        Heard(5.0 + 0.04 * max(0, index - 2), piece.astype(np.int16))
        for index, piece in enumerate(np.split(sound[: 10 * n_piece], 10))
    ]
    found_s = faded_in_s([Heard(4.0, pieces[5].samples), Heard(4.5, None), *pieces], 5.0)
    assert 1000.0 * found_s == pytest.approx(later_ms, abs=8.0)  # a period of the voice
