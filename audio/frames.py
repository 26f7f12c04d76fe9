"""Rates, durations and levels: the units that all rooms share.

Positions are sample counts from the start of a session; a duration is a position difference
over a rate, so it never drifts.
"""

import numpy as np
from numpy.typing import NDArray

RECOGNIZER_HZ = 16_000  # Moonshine, Whisper and Silero are trained at 16 kHz
VOICE_HZ = 24_000  # the native rate of the GA Realtime protocol's audio/pcm
BYTES_PER_SAMPLE = 2  # int16

FRAME_MS = 20  # a common divisor of every codec's packet; 480 samples at 24 kHz
VAD_WINDOW = 512  # samples at 16 kHz that Silero v6 reads at a time: 32 ms
VAD_WINDOW_MS = 1000 * VAD_WINDOW / RECOGNIZER_HZ

Samples = NDArray[np.int16]


def duration_ms(n_samples: int, rate_hz: int) -> float:
    """Milliseconds that n_samples last at rate_hz."""
    return 1000.0 * n_samples / rate_hz


def samples_in(ms: float, rate_hz: int) -> int:
    """Whole samples in ms, rounded to the nearest."""
    return round(ms * rate_hz / 1000.0)


def rms_dbfs(samples: Samples) -> float:
    """Root mean square level in dB of full scale; -120.0 for silence or no samples."""
    if len(samples) == 0:
        return -120.0
    level = float(np.sqrt(np.mean(np.square(samples.astype(np.float64))))) / 32768.0
    return max(-120.0, 20.0 * float(np.log10(level))) if level > 0 else -120.0
