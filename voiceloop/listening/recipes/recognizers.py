"""The recognizers of the embedded preset as a recipe hears through them: offline, at a fixed lag.

Owns what of a recognizer the audio clock cannot see: how long after a sound its words are there,
and a name for its files, by which what it heard is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from audio.asr import window_recognizer
from audio.asr.moonshine import decoder, vocabulary
from audio.asr.moonshine.onnx_network import SHA256, MoonshineOnnxRecognizer
from audio.stream import RecognizerModel
from voiceloop.listening.recipes.disk_cache import digest


@dataclass(frozen=True, slots=True)
class OfflineRecognizer:
    """build: the model, on a clock that stands. lag_ms: from a sound to its words in a live call.

    fingerprint: of all its words depend on.
    """

    build: Callable[[], RecognizerModel]
    lag_ms: float
    fingerprint: Callable[[], str]


def _moonshine_files() -> str:
    # Its words depend on where decodes fall and on the rules of its decoder as well.
    modules = (decoder, vocabulary, window_recognizer)
    sources = (Path(str(module.__file__)).read_bytes() for module in modules)
    return digest(str(SELDOM_MS), *SHA256.values(), *sources)


DEFAULT = "moonshine-tiny"
SELDOM_MS = 10_000.0
OFFLINE: dict[str, OfflineRecognizer] = {
    # Chunk of the client, two hops, and what is left of a decode: a core answers a flush at the
    # end of a turn after 36 ms in the median, having begun where the voice fell (LOG.md,
    # 2026-11-22, "an end that is heard sooner"). It is asked at pauses alone, to save time: no
    # turn ends before that is answered.
    "moonshine-tiny": OfflineRecognizer(
        lambda: MoonshineOnnxRecognizer(update_ms=SELDOM_MS, reads_falls=False, clock=lambda: 0.0),
        60.0,
        _moonshine_files,
    ),
}
