"""How loud a stream was lately, so that a recognizer need not decode silence again.

No detector of speech: it only says whether what came after a moment lies so far below the speech
before it that it cannot change a transcript.
"""

from collections import deque

import numpy as np

from ..frames import RECOGNIZER_HZ, VAD_WINDOW, Samples
from ..vad import Vad

FRAME = RECOGNIZER_HZ // 50  # samples: 20 ms
N_FRAMES = 1_500  # 30 s: the longest window a recognizer keeps
# An unstressed syllable lies 15-20 dB below the loudest frame of its sentence, breath and the
# room some 35 below; a frame under -55 dBFS is silence whatever came before it.
BELOW_PEAK_DB = 30.0
SILENCE_DBFS = -55.0
# In a noisy room the floor itself is closer to the speech: within 6 dB of it nothing was said,
# unless that comes within 12 dB of the peak.
ABOVE_FLOOR_DB, FLOOR_BELOW_PEAK_DB = 6.0, 12.0

# A voice that has fallen: its last frames lie so far under the loud ones of the last seconds. On
# recorded people that comes some 50 ms before the voice detector's first low window, and 1.2 times
# a second of speech without a pause, at the closure of a consonant.
FALLEN_DB, FALLEN_FRAMES, LOUD_FRAMES = 22.0, 2, 200
LEAST_FRAMES = 10  # 200 ms: less has no loud parts to compare with

# A click or a cup is one window of voice to the detector; the shortest word is several.
VOICED, MIN_VOICED_WINDOWS = 0.5, 3


class SpeechLevel:
    """Levels of the last 30 s of one stream of int16 samples at 16 kHz, by frames of 20 ms."""

    def __init__(self) -> None:
        self._levels_dbfs: deque[float] = deque(maxlen=N_FRAMES)
        self._rest = np.zeros(0, np.int16)
        self._n_samples = 0

    def feed(self, samples: Samples) -> None:
        joined = np.concatenate((self._rest, samples))
        n_whole = len(joined) // FRAME * FRAME
        frames = joined[:n_whole].reshape(-1, FRAME).astype(np.float32) / 32768.0
        power = np.mean(np.square(frames), axis=1)
        self._levels_dbfs.extend((10.0 * np.log10(np.maximum(power, 1e-12))).tolist())
        self._rest = joined[n_whole:]
        self._n_samples += len(samples)

    def is_silent_since(self, position: int) -> bool:
        """Whether no frame that ends after position (in samples) is above SILENCE_DBFS."""
        return self._is_below(SILENCE_DBFS, position)

    def is_quiet_since(self, position: int) -> bool:
        """Whether all of it lies too far below the speech before position to change a word."""
        if not self._levels_dbfs:
            return True
        peak = max(self._levels_dbfs)
        floor = float(np.percentile(np.fromiter(self._levels_dbfs, float), 10))
        noise = min(floor + ABOVE_FLOOR_DB, peak - FLOOR_BELOW_PEAK_DB)
        return self._is_below(max(SILENCE_DBFS, peak - BELOW_PEAK_DB, noise), position)

    def has_fallen_since(self, position: int) -> bool:
        """Whether speech that came after position (in samples) has fallen, and may have ended."""
        levels = np.fromiter(self._levels_dbfs, float)[-LOUD_FRAMES:]
        n_after = self._n_frames_since(position)
        if len(levels) < LEAST_FRAMES or n_after <= FALLEN_FRAMES:
            return False
        is_low = levels < np.percentile(levels, 90) - FALLEN_DB
        return bool(is_low[-FALLEN_FRAMES:].all() and not is_low[-n_after:].all())

    def _is_below(self, threshold_dbfs: float, position: int) -> bool:
        n_after = self._n_frames_since(position)
        if n_after <= 0:
            return True
        levels = list(self._levels_dbfs)[-n_after:]
        return all(level < threshold_dbfs for level in levels)

    def _n_frames_since(self, position: int) -> int:
        """Frames that end after position. The last, unfinished one is judged 20 ms late at most."""
        return -(-(self._n_samples - len(self._rest) - position) // FRAME)


class VoicedLevel(SpeechLevel):
    """The same for a model that writes words over any noise: silent is all that is no voice."""

    def __init__(self) -> None:
        super().__init__()
        self._vad = Vad()
        self._voiced_ends: deque[int] = deque(maxlen=N_FRAMES * FRAME // VAD_WINDOW)

    def feed(self, samples: Samples) -> None:
        super().feed(samples)
        self._voiced_ends.extend(
            window.end_position
            for window in self._vad.feed(samples)
            if window.probability >= VOICED
        )

    def is_silent_since(self, position: int) -> bool:
        n_voiced = sum(end > position for end in self._voiced_ends)
        return n_voiced < MIN_VOICED_WINDOWS or super().is_silent_since(position)
