"""Clauses kept as samples: found again as they were, and bounded."""

import numpy as np
import pytest

from audio.tts import clause_audio
from audio.tts.clause_audio import ClauseAudio


def wave(n: int, level: float = 0.5) -> np.ndarray:
    return np.full(n, level, np.float32)


def test_a_clause_is_found_again_under_all_it_was_made_of_and_nothing_less() -> None:
    clauses: ClauseAudio[list[float]] = ClauseAudio(1 << 20)
    clauses.put(("anna", 1.0, "Hello.", False), wave(10), [0.0, 5.0])
    found = clauses.get(("anna", 1.0, "Hello.", False))
    assert found is not None and found.times == [0.0, 5.0]
    assert np.array_equal(found.wave, wave(10))
    for other in (("bea", 1.0, "Hello.", False), ("anna", 1.1, "Hello.", False)):
        assert clauses.get(other) is None
    assert (clauses.n_hits, clauses.n_misses) == (1, 2)


def test_what_is_kept_does_not_change_with_what_was_given() -> None:
    clauses: ClauseAudio[None] = ClauseAudio(1 << 20)
    given = wave(10)
    clauses.put("a", given, None)
    given *= 0
    found = clauses.get("a")
    assert found is not None and found.wave[0] == 0.5
    with pytest.raises(ValueError, match="read-only"):
        found.wave[0] = 0.0


def test_the_clause_that_was_not_used_for_longest_goes_first() -> None:
    clauses: ClauseAudio[None] = ClauseAudio(max_bytes=30 * 4)
    for name in "abc":
        clauses.put(name, wave(10), None)
    assert clauses.get("a")
    clauses.put("d", wave(10), None)
    assert clauses.get("b") is None
    assert clauses.get("a") and clauses.get("c") and clauses.get("d")
    clauses.put("long", wave(21), None)
    assert len(clauses) == 1  # 21 and 10 are more than 30
    clauses.put("longer", wave(31), None)
    assert clauses.get("longer") is None and clauses.get("long")


def test_a_clause_that_is_put_twice_counts_once() -> None:
    clauses: ClauseAudio[None] = ClauseAudio(max_bytes=20 * 4)
    for _ in range(5):
        clauses.put("a", wave(10), None)
    clauses.put("b", wave(10, 0.1), None)
    assert clauses.get("a") and clauses.get("b")


def test_short_clauses_are_bounded_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clause_audio, "MAX_CLAUSES", 3)
    clauses: ClauseAudio[None] = ClauseAudio(1 << 20)
    for number in range(10):
        clauses.put(number, wave(1), None)
    assert len(clauses) == 3 and clauses.get(9) and clauses.get(6) is None


def test_a_store_without_room_keeps_nothing() -> None:
    clauses: ClauseAudio[None] = ClauseAudio(max_bytes=0)
    clauses.put("a", wave(1), None)
    assert len(clauses) == 0
