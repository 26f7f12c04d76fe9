"""Noise taken out of a caller's audio before anything listens to it: WebRTC's suppressor.

One stream's state: its estimate of the steady noise. What comes out is 6 ms late. 10 ms of audio
take 12 us of CPU, so it runs where the audio arrives. An optional package: `is_available` tells
whether it is there.

Source: the audio processing module of WebRTC (BSD-3-Clause), through webrtc-noise-gain.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import MissingExtra
from .frames import RECOGNIZER_HZ, Samples

Field: TypeAlias = Literal["near_field", "far_field"]

FRAME = RECOGNIZER_HZ // 100  # WebRTC's: 10 ms
# WebRTC's levels, 1 (6 dB) to 4 (21 dB). The Realtime protocol's near field is a microphone at the
# mouth, its far field one in the room, which hears more noise for the same voice.
LEVELS: dict[Field, int] = {"near_field": 2, "far_field": 3}


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether the package is there, and runs here."""
    try:
        import webrtc_noise_gain  # noqa: F401
    except ImportError:
        return False
    return True


class NoiseReduction:
    """One stream of int16 samples at 16 kHz.

    Raises: MissingExtra if webrtc-noise-gain is not installed.
    """

    def __init__(self, field: Field) -> None:
        try:
            from webrtc_noise_gain import AudioProcessor
        except ImportError:
            raise MissingExtra("webrtc-noise-gain", "noise reduction", "noise") from None
        self.field = field
        self._processor: Any = AudioProcessor(0, LEVELS[field])  # 0: no change of the level
        self._pending: Samples = np.zeros(0, np.int16)

    def push(self, samples: Samples) -> Samples:
        """Return what samples [n] complete, int16 [m]: less than 10 ms are withheld for the
        next.
        """
        pending = np.concatenate((self._pending, samples))
        n_whole = len(pending) // FRAME * FRAME
        self._pending = pending[n_whole:]
        cleaned = b"".join(
            self._processor.Process10ms(pending[start : start + FRAME].tobytes()).audio
            for start in range(0, n_whole, FRAME)
        )
        return np.frombuffer(cleaned, dtype=np.int16)

    def flush(self) -> Samples:
        """The withheld end of the stream, as it came."""
        rest, self._pending = self._pending, np.zeros(0, np.int16)
        return rest
