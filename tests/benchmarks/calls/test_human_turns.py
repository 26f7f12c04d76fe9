"""Human clips: which are played, and from where a barge-in counts."""

from __future__ import annotations

import numpy as np
import pytest

from audio.frames import RECOGNIZER_HZ
from benchmarks.calls import human_turns as clips
from benchmarks.calls.human_turns import CHOSEN_ON, _onset_ms, human_turns, utterance_of
from voiceloop.listening.recipes.endpointing_set import GREETING, LEAD_MS, CallerTurn
from voiceloop.listening.recipes.forced_alignment import SpokenWord

MS = RECOGNIZER_HZ // 1000


def clip(*parts: tuple[int, float]) -> np.ndarray:
    """Square waves of (ms, dBFS) each."""
    return np.concatenate(
        [np.full(ms * MS, 32768.0 * 10.0 ** (dbfs / 20.0)).astype(np.int16) for ms, dbfs in parts]
    )


@pytest.mark.parametrize(
    ("parts", "word_ms", "onset_ms"),
    [
        (((400, -80.0), (400, -20.0)), 400.0, 400.0),
        (((400, -80.0), (400, -20.0)), 350.0, 400.0),  # aligned into the silence
        (((400, -80.0), (400, -20.0)), 450.0, 400.0),  # aligned late
        (((400, -50.0), (400, -20.0)), 400.0, 400.0),  # a floor within 35 dB of the peak
        (((360, -50.0), (40, -48.0), (400, -20.0)), 360.0, 360.0),  # a soft first sound over it
    ],
)
def test_a_barge_in_counts_from_the_first_sound_of_the_first_word(
    parts: tuple[tuple[int, float], ...], word_ms: float, onset_ms: float
) -> None:
    assert _onset_ms(clip(*parts), word_ms) == pytest.approx(onset_ms, abs=10.0)


def caller_turn(name: str, speaker: str, kind: str, *, is_written: bool) -> CallerTurn:
    """400 ms of speech in a room, after 200 ms of the clip's own quiet."""
    samples = clip((int(LEAD_MS) + 200, -80.0), (400, -20.0), (2600, -80.0))
    begin_ms, end_ms = LEAD_MS + 200.0, LEAD_MS + 600.0
    words = (SpokenWord("hello", begin_ms, end_ms),) if is_written else None
    slices = frozenset({kind})
    return CallerTurn(name, speaker, "test", samples, words, (), end_ms, GREETING, slices)


def test_plain_turns_go_on_with_orders_where_the_read_ones_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_read = CHOSEN_ON + 3
    read = [caller_turn(f"read {i}", f"r{i}", "human", is_written=True) for i in range(n_read)]
    orders = [caller_turn(f"order {i}", f"o{i % 2}", "orders", is_written=False) for i in range(5)]
    number = caller_turn("number", "n", "numbers", is_written=False)
    monkeypatch.setattr(clips, "data_with", lambda *names: None)
    monkeypatch.setattr(clips, "caller_turns", lambda data, part: read)
    monkeypatch.setattr(clips, "real_turns", lambda data, part: [*orders, number])
    few, many = human_turns("plain", 3), human_turns("plain", 100)
    assert [turn.name for turn in many[:3]] == [turn.name for turn in few]
    assert sorted(turn.name for turn in many[3:]) == [f"order {i}" for i in range(5)]
    assert {turn.speaker for turn in many[3:5]} == {"o0", "o1"}  # one of each before a second
    said = utterance_of(many[-1])
    assert (said.turn.text, said.onset, said.end) == ("", 200 * 24, 600 * 24)
    assert human_turns("hesitation", 100) == []
