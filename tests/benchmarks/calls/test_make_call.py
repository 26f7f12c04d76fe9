"""The bundled caller's recordings can be made again, hesitation and voices and all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.calls.make_call import make_utterance
from clients.call.script import load_call, load_utterances
from clients.recording import Recording
from clients.report.waveform import pauses

pytest.importorskip("hibari")

TEXT = "I'd like a tea and | a muffin, please."


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recording]:
    folder = tmp_path_factory.mktemp("spoken")
    voices = load_call().casts["hibari"]
    return {voice: make_utterance(TEXT, 600.0, voice, folder) for voice in voices}


def test_a_caller_hesitates_once_and_between_the_two_halves(spoken: dict[str, Recording]) -> None:
    for recording in spoken.values():
        ((begin, end),) = pauses(recording.samples, recording.rate_hz, 400.0)
        assert 560 <= 1000 * (end - begin) / recording.rate_hz <= 700
        assert 0.3 < begin / (len(recording.samples) - (end - begin)) < 0.7


def test_a_recording_that_ships_is_what_is_made(tmp_path: Path) -> None:
    script = load_call()
    shipped = load_utterances(script, "deep", 16_000)[4]
    made = make_utterance(shipped.turn.text, shipped.turn.pause_ms, "deep", tmp_path)
    assert len(made.samples) == len(shipped.recording.samples)
    np.testing.assert_allclose(made.samples, shipped.recording.samples, atol=2)
