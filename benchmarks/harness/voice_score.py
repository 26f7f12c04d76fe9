"""How good a voice sounds, and whether it is understood, without a person's ears.

DNSMOS P.808 guesses the mark, 1 to 5, that listeners would give (Reddy et al., 2021): Microsoft's
network, as the package `speechmos` (MIT) holds it. Its features are computed here, equal to
librosa's to 3e-7. Read back: the share of words that a recognizer gets wrong.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ, VOICE_HZ, Samples
from audio.normalize import spoken_words
from audio.resample import Resampler
from audio.stream import RecognizerOptions, Speech, StreamFailed, VoiceModel, VoiceOptions
from benchmarks.harness.one_turn import recognize
from benchmarks.recognizer_bench import edit_distance

SENTENCES = (
    "Sure, one large latte. That comes to $4.50, is that right?",
    "We open at eight thirty on weekdays and close at seven.",
    "I can book that for you at seven and I will call you back at 555-0142 tomorrow.",
    "A large cappuccino and a blueberry muffin come to $7.75 in all. Anything else?",
    "I'm sorry, we have no gluten-free bread today, but the salad is a good choice.",
    "Okay, so that is two black coffees, one with oat milk and one with sugar.",
    "No problem at all. I've changed it to three people at half past eight. See you then!",
    "Thank you for calling Juniper Cafe, have a lovely day, goodbye.",
)
LEAD_S = 0.2  # of silence before and after what is read back
WINDOW = round(9.01 * RECOGNIZER_HZ)  # samples that the network hears at a time
N_FFT, HOP, N_MELS = 321, 160, 120  # of its features
MAX_STEPS = 100_000


class Dnsmos:
    """The network in path, by itself that of the installed package.

    Raises: AudioError if the package is absent.
    """

    def __init__(self, path: Path | None = None) -> None:
        import onnxruntime

        self._session = onnxruntime.InferenceSession(str(path or _packaged_network()))
        self._filters = _mel_filters()

    def __call__(self, samples: Samples) -> float:
        """The mark of int16 samples at 16 kHz, repeated where they are shorter than a window."""
        speech = np.resize(samples, max(len(samples), WINDOW)) / 32768
        starts = range(0, len(speech) - WINDOW + 1, RECOGNIZER_HZ)
        windows = [self._features(speech[at : at + WINDOW - HOP]) for at in starts]
        marks = [self._session.run(None, {"input_1": one[None]})[0] for one in windows]
        return float(np.mean(marks))

    def _features(self, speech: NDArray[np.float64]) -> NDArray[np.float32]:
        padded = np.pad(speech, N_FFT // 2)
        frames = np.lib.stride_tricks.sliding_window_view(padded, N_FFT)[::HOP]
        power = np.abs(np.fft.rfft(frames * np.hanning(N_FFT + 1)[:-1])) ** 2
        level_db = 10 * np.log10(np.maximum(power @ self._filters.T, 1e-10))
        level_db = np.maximum(level_db - level_db.max(), -80.0)
        return ((level_db + 40) / 40).astype(np.float32)


def _packaged_network() -> Path:
    spec = find_spec("speechmos")  # found, not imported: it would want librosa
    if spec is None or spec.origin is None:
        raise AudioError(
            "expected the package 'speechmos' to score voices, found none; "
            "remedy: pip install --no-deps speechmos==0.0.1.1"
        )
    return Path(spec.origin).parent / "dnsmos_models" / "model_v8.onnx"


def _mel_filters() -> NDArray[np.float64]:
    """Triangles [N_MELS, N_FFT // 2 + 1] of equal area on the mel scale of Slaney's toolbox."""
    hz_per_mel, log_step, knee_hz, knee_mel = 200 / 3, np.log(6.4) / 27, 1000.0, 15.0
    top_mel = knee_mel + np.log(RECOGNIZER_HZ / 2 / knee_hz) / log_step
    mels = np.linspace(0.0, top_mel, N_MELS + 2)
    above_hz = knee_hz * np.exp(log_step * (mels - knee_mel))
    edges_hz = np.where(mels < knee_mel, hz_per_mel * mels, above_hz)
    offsets_hz = edges_hz[:, None] - np.fft.rfftfreq(N_FFT, 1 / RECOGNIZER_HZ)
    widths_hz = np.diff(edges_hz)[:, None]
    rising, falling = -offsets_hz[:-2] / widths_hz[:-1], offsets_hz[2:] / widths_hz[1:]
    return (
        np.maximum(0.0, np.minimum(rising, falling)) * (2 / (edges_hz[2:] - edges_hz[:-2]))[:, None]
    )


def speak(voice: VoiceModel, text: str) -> Samples:
    """text at 16 kHz. Raises: AudioError if the stream fails."""
    voice.open("scored", VoiceOptions())
    voice.feed("scored", text)
    voice.finish("scored")
    resampler = Resampler(VOICE_HZ, RECOGNIZER_HZ)
    pieces = []
    for _ in range(MAX_STEPS):
        if not voice.has_work():
            break
        for event in voice.step():
            if isinstance(event, StreamFailed):
                raise AudioError(f"expected speech, found: {event.message}")
            if isinstance(event, Speech):
                pieces.append(resampler.push(event.samples))
    return np.concatenate((*pieces, resampler.flush()))


def read_back_wer(clips: Sequence[Samples], recognizer: Any) -> float:
    """Share of the words of SENTENCES, spoken in clips, that the recognizer gets wrong."""
    silence = np.zeros(round(LEAD_S * RECOGNIZER_HZ), np.int16)
    n_wrong = n_words = 0
    for text, clip in zip(SENTENCES, clips, strict=True):
        heard = recognize(recognizer, np.concatenate((silence, clip, silence)), RecognizerOptions())
        said = spoken_words(text)
        n_wrong += edit_distance(said, spoken_words(" ".join(heard)))
        n_words += len(said)
    return n_wrong / n_words
