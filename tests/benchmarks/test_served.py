"""More calls than are carried: who counts as refused, as broken off, and what it is judged by."""

from __future__ import annotations

from benchmarks.overload import Found, Phase, Turn, bars_of


def phase(*gaps_ms: float, refusals_ms: tuple[float, ...] = (), broken: int = 0) -> Phase:
    turns = [Turn(float(at_s), gap_ms, False) for at_s, gap_ms in enumerate(gaps_ms)]
    return Phase(turns, list(refusals_ms), ["the line broke"] * broken, len(gaps_ms))


def test_the_gap_of_the_rush_is_held_to_that_of_a_full_server() -> None:
    filling = phase(100.0, 100.0, 400.0, 400.0)
    filling.last_let_in_s = 2.0  # what came before was no full server's
    found = Found(filling, phase(500.0, 500.0, refusals_ms=(5.0, 20.0)))
    assert [bar.holds for bar in bars_of(found)] == [True, True, True]
    slow = Found(filling, phase(600.0, 600.0, refusals_ms=(5.0, 80.0), broken=1))
    assert [bar.holds for bar in bars_of(slow)] == [False, False, False]
