"""Every voice with its trained weights: what two recognizers read back, and how it sounds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audio.asr.moonshine.onnx_network import MoonshineOnnxRecognizer
from audio.asr.whisper import WhisperRecognizer
from audio.frames import Samples
from audio.stream import RecognizerModel, VoiceModel
from audio.tts.espeak import EspeakVoice
from audio.tts.hibari import HibariVoice
from audio.tts.kokoro import KokoroVoice
from benchmarks.harness.voice_score import SENTENCES, Dnsmos, read_back_wer, speak
from tests.real_weights.packages import DNSMOS, KOKORO, PIPER_JOE, WHISPER_TINY, Weights
from tests.real_weights.piper import PiperJoe

pytestmark = [pytest.mark.real_weights, pytest.mark.timeout(300)]

# Least mark of P.808 (1 to 5), and most words wrong by Whisper tiny.en and by Moonshine tiny.
BARS = {
    "hibari": (3.9, 0.02, 0.04),
    "espeak": (3.2, 0.35, 0.30),
    "piper-joe": (3.8, 0.10, 0.15),
    "kokoro": (3.9, 0.05, 0.08),
}


@pytest.fixture(scope="module")
def readers(fetched: Callable[[Weights], Path]) -> tuple[RecognizerModel, ...]:
    pytest.importorskip("moonshine_voice", reason="moonshine-voice is not installed")
    whisper = WhisperRecognizer(fetched(WHISPER_TINY), device="cpu", n_threads=1)
    return whisper, MoonshineOnnxRecognizer()


def said_by(name: str, fetched: Callable[[Weights], Path]) -> list[Samples]:
    if name == "piper-joe":
        joe = PiperJoe(fetched(PIPER_JOE))
        return [joe.speak(text) for text in SENTENCES]
    if name == "kokoro":
        voice: VoiceModel = KokoroVoice(fetched(KOKORO))
    else:
        voice = HibariVoice() if name == "hibari" else EspeakVoice()
    return [speak(voice, text) for text in SENTENCES]


@pytest.mark.parametrize("name", BARS)
def test_it_is_understood_and_sounds_as_it_should(
    name: str, readers: tuple[RecognizerModel, ...], fetched: Callable[[Weights], Path]
) -> None:
    mark = Dnsmos(fetched(DNSMOS) / "model_v8.onnx")
    clips = said_by(name, fetched)
    mean = sum(mark(clip) for clip in clips) / len(clips)
    wrong = [read_back_wer(clips, reader) for reader in readers]
    print(f"{name}: P.808 {mean:.2f}, read back wrong {wrong[0]:.3f} and {wrong[1]:.3f}")
    least, *most = BARS[name]
    assert mean >= least
    assert all(rate <= limit for rate, limit in zip(wrong, most, strict=True))
