"""Every recognizer with its trained weights on people's recordings, streamed as in a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audio.asr.moonshine.onnx_network import MoonshineOnnxRecognizer
from audio.asr.whisper import WhisperRecognizer
from audio.stream import RecognizerModel
from tests.real_weights.packages import MOONSHINE_BASE, WHISPER_BASE, WHISPER_TINY, Weights
from tests.real_weights.recorded_speech import clips_of, word_error_rate

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(600)]

# Of ten sentences read with accents and one of LibriSpeech, and of five strings of digits. They
# tell a recognizer that works from one that does not; what each hears is in benchmarks/RESULTS.md.
MOST_READ, MOST_DIGITS = 10, 5
MOST_WRONG = {
    "moonshine-tiny": (0.25, 0.35),
    "moonshine-base": (0.20, 0.35),
    "whisper-tiny": (0.20, 0.65),  # of one of the five strings it writes a loop
    "whisper-base": (0.20, 0.20),
}


def stopped_clock() -> float:
    """No time passes in a decode, so that words do not depend on the machine's load."""
    return 0.0


@pytest.fixture(params=MOST_WRONG)
def recognizer(
    request: pytest.FixtureRequest, fetched: Callable[[Weights], Path]
) -> Iterator[tuple[str, RecognizerModel]]:
    def whisper(weights: Weights) -> WhisperRecognizer:
        folder = fetched(weights)
        return WhisperRecognizer(folder, device="cpu", n_threads=1, clock=stopped_clock)

    match request.param:
        case "moonshine-tiny":
            pytest.importorskip("moonshine_voice", reason="moonshine-voice is not installed")
            yield request.param, MoonshineOnnxRecognizer(clock=stopped_clock)
        case "moonshine-base":
            pytest.importorskip("moonshine_voice", reason="its tokenizer is not installed")
            folder = fetched(MOONSHINE_BASE)
            yield request.param, MoonshineOnnxRecognizer(folder, clock=stopped_clock)
        case "whisper-tiny":
            yield request.param, whisper(WHISPER_TINY)
        case "whisper-base":
            yield request.param, whisper(WHISPER_BASE)


def test_it_hears_people(recognizer: tuple[str, RecognizerModel], shared_speech: Path) -> None:
    name, model = recognizer
    read = list(clips_of(shared_speech, "speechocean762", MOST_READ))
    read += clips_of(shared_speech, "librispeech", 1)
    digits = list(clips_of(shared_speech, "fsdd", MOST_DIGITS))
    most_read, most_digits = MOST_WRONG[name]
    wrong = word_error_rate(model, read), word_error_rate(model, digits, are_digits=True)
    print(f"{name}: {100 * wrong[0]:.1f} % of read words wrong, {100 * wrong[1]:.1f} % of digits")
    assert wrong[0] <= most_read and wrong[1] <= most_digits
