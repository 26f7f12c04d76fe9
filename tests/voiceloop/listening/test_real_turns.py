"""Where the turns that endpointing is judged on end."""

from __future__ import annotations

import numpy as np
import pytest

from audio.recipes.paused_speech import Kind, PausedTurn
from voiceloop.listening.recipes import real_turns
from voiceloop.listening.recipes.endpointing_set import LEAD_MS, MS
from voiceloop.listening.recipes.forced_alignment import SpokenWord


@pytest.mark.parametrize(
    ("kind", "last_word_ms", "end_ms"),
    [("read", 1500.0, 1500.0), ("read", 1900.0, 2000.0), ("number", 1500.0, 2000.0)],
)
def test_a_breath_behind_the_last_word_is_not_read_any_more(
    monkeypatch: pytest.MonkeyPatch, kind: Kind, last_word_ms: float, end_ms: float
) -> None:
    samples = np.random.default_rng(0).normal(0, 900, 2500 * MS).astype(np.int16)
    said = PausedTurn("clip", kind, "someone", samples, 0.0, 2000.0, (), "five six")
    words = (SpokenWord("five", 600.0, 900.0), SpokenWord("six", 1000.0, last_word_ms + LEAD_MS))
    monkeypatch.setattr(real_turns, "align", lambda samples, words_: words)
    assert real_turns._caller_turn(said, "fit").end_ms == end_ms + LEAD_MS
