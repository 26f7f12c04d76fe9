"""The parts of the peer comparison that decide its figures."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calls.human_turns import HumanTurn
from benchmarks.peers.__main__ import (
    bars_of,
    figures_of,
    judged_of,
)
from benchmarks.peers.call import (
    Heard,
    MeasuredTurn,
    account_of,
    faded_in_s,
    goes_on,
    silent_after,
)
from benchmarks.peers.stub_services import KnownTurn, spoken, words_inside
from clients.connection import RATE_HZ

HZ = 16_000
RNG = np.random.default_rng(1)
TURN = KnownTurn(
    (RNG.normal(0, 3000, 2 * HZ)).astype(np.int16),
    (("one", 100.0, 500.0), ("two", 600.0, 1000.0), ("three", 1200.0, 1800.0)),
)


def part(from_ms: int, to_ms: int, rate_hz: int = HZ) -> np.ndarray:
    samples = TURN.samples[from_ms * HZ // 1000 : to_ms * HZ // 1000]
    if rate_hz == HZ:
        return samples
    at = np.arange(len(samples) * rate_hz // HZ) * HZ / rate_hz
    return np.interp(at, np.arange(len(samples)), samples).astype(np.int16)


@pytest.mark.parametrize(
    ("from_ms", "to_ms", "words"),
    [(0, 2000, "one two three"), (0, 1100, "one two"), (550, 1900, "two three"), (0, 250, "")],
)
def test_the_recognizer_knows_the_words_in_the_audio_and_no_others(
    from_ms: int, to_ms: int, words: str
) -> None:
    assert " ".join(words_inside(TURN, part(from_ms, to_ms), HZ)) == words


def test_audio_may_come_in_a_room_and_at_another_rate() -> None:
    quiet = RNG.normal(0, 10, 24_000).astype(np.int16)
    padded = np.concatenate([quiet, part(0, 1100, 24_000), quiet])
    assert words_inside(TURN, padded, 24_000) == ("one", "two")


def test_audio_of_nothing_has_no_words() -> None:
    assert words_inside(TURN, np.zeros(HZ, dtype=np.int16), HZ) == ()
    assert words_inside(TURN, RNG.normal(0, 3000, HZ).astype(np.int16), HZ) == ()


def test_an_agent_is_silent_at_its_first_break() -> None:
    assert silent_after([20.0, 40.0, 200.0, 900.0]) == 200.0
    assert silent_after([]) == 0.0


def test_what_cut_a_turn_is_told_by_the_first_reply_since_its_onset_and_an_answer_by_its_own() -> (
    None
):
    said = ((1.0, "the turn before"), (None, "nothing"), (5.0, "what cut it"), (8.0, "its answer"))
    told = [{"marks": {} if at is None else {"first_byte_on_wire": at}, "is": x} for at, x in said]
    cut, answer = account_of(told, 2.0), account_of(told, 6.0)
    assert cut is not None and cut["is"] == "what cut it"
    assert answer is not None and answer["is"] == "its answer"
    assert account_of(told, 9.0) is None


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


def test_a_cut_turn_has_no_gap_and_counts() -> None:
    own = figures_of(turns(None, cut=True))
    assert own["plain"]["cut"] == 100.0 and own["plain"]["gap_ms"]["n"] == 0
    figures = {"voiceloop": own, "pipecat": figures_of(turns(1.0))}
    bars = {bar.name: bar for bar in bars_of(figures, "voiceloop")}
    assert not bars["voiceloop: turns cut, plain: the better peer"].holds


def test_a_cut_is_hard_where_the_agent_is_heard_for_long_once_the_caller_goes_on() -> None:
    over_ms = (None, 0.0, 250.0, 251.0)
    cuts = [MeasuredTurn("a", "plain", None, True, True, over_ms=ms) for ms in over_ms]
    own = figures_of([*cuts, *turns(200.0)])["plain"]
    assert own["cut"] == 80.0 and own["cut_hard"] == 20.0


def test_a_caller_goes_on_with_the_first_sound_behind_the_agents() -> None:
    """The onset lies 100 ms into the clip; it sounds until 300 ms, and from 500 to 700."""
    samples = np.zeros(HZ, np.int16)
    for begin, end in ((1600, 4800), (8000, 11200)):
        samples[begin:end] = RNG.normal(0, 3000, end - begin).astype(np.int16)
    turn = HumanTurn("a", "b", "hesitation", samples, onset_ms=100.0, end_ms=700.0, words=())
    assert goes_on(turn, 0.1) == pytest.approx(0.1)  # it had not stopped
    assert goes_on(turn, 0.25) == pytest.approx(0.4)
    assert goes_on(turn, 0.7) == float("inf")


def test_a_turn_without_an_answer_misses_its_bar() -> None:
    silent = [MeasuredTurn("a", "hesitation", None, False, False), *turns(200.0)]
    bars = {bar.name: bar for bar in bars_of({"voiceloop": figures_of(silent)}, "voiceloop")}
    assert bars["voiceloop: unanswered turns"].value == 1
    assert not bars["voiceloop: unanswered turns"].holds


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


def test_slow_stubs_have_bars_of_their_own() -> None:
    figures = {"voiceloop": figures_of(turns(340.0))}
    held = {bar.name: bar.holds for bar in bars_of(figures, "voiceloop", "60,100,10,100")}
    assert not held["voiceloop: gap p50"] and held["voiceloop: gap p95"]
    of_others = bars_of(figures, "voiceloop", "1,2,3,4")
    assert not any("gap" in bar.name for bar in of_others)
