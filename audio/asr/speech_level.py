"""How loud a stream was lately, so that a recognizer need not decode silence again.

No detector of speech: it only says whether what came after a moment lies so far below the speech
before it that it cannot change a transcript.
"""

from collections import deque
from itertools import islice
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..frames import RECOGNIZER_HZ, VAD_WINDOW, Samples
from ..vad import Vad

Levels: TypeAlias = NDArray[np.float64]

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
        self._room = np.empty(2 * N_FRAMES, np.float64)  # the latest levels, in dBFS, end at `_n`
        self._n = 0
        self._rest = np.zeros(0, np.int16)
        self._n_samples = 0

    def feed(self, samples: Samples) -> None:
        joined = np.concatenate((self._rest, samples))
        n_whole = len(joined) // FRAME * FRAME
        frames = joined[:n_whole].reshape(-1, FRAME).astype(np.float32) / 32768.0
        power = np.mean(np.square(frames), axis=1)
        self._append((10.0 * np.log10(np.maximum(power, 1e-12)))[-N_FRAMES:])
        self._rest = joined[n_whole:]
        self._n_samples += len(samples)

    def _append(self, levels: Levels) -> None:
        if self._n + len(levels) > len(self._room):
            kept = self._latest(N_FRAMES - len(levels)).copy()
            self._room[: len(kept)] = kept
            self._n = len(kept)
        self._room[self._n : self._n + len(levels)] = levels
        self._n += len(levels)

    def _latest(self, n_frames: int) -> Levels:
        """A view of the last levels, so many or as many as there are."""
        return self._room[self._n - min(n_frames, self._n) : self._n]

    def is_silent_since(self, position: int) -> bool:
        """Whether no frame that ends after position (in samples) is above SILENCE_DBFS."""
        return self._is_below(SILENCE_DBFS, position)

    def is_quiet_since(self, position: int) -> bool:
        """Whether all of it lies too far below the speech before position to change a word."""
        levels = self._latest(N_FRAMES)
        if not len(levels):
            return True
        peak = float(levels.max())
        floor = _percentile(levels, 10)
        noise = min(floor + ABOVE_FLOOR_DB, peak - FLOOR_BELOW_PEAK_DB)
        return self._is_below(max(SILENCE_DBFS, peak - BELOW_PEAK_DB, noise), position)

    def has_fallen_since(self, position: int) -> bool:
        """Whether speech that came after position (in samples) has fallen, and may have ended."""
        levels = self._latest(LOUD_FRAMES)
        n_after = self._n_frames_since(position)
        if len(levels) < LEAST_FRAMES or n_after <= FALLEN_FRAMES:
            return False
        fallen_dbfs = _percentile(levels, 90) - FALLEN_DB
        if not (levels[-FALLEN_FRAMES:] < fallen_dbfs).all():
            return False
        return not bool((levels[-n_after:] < fallen_dbfs).all())

    def _is_below(self, threshold_dbfs: float, position: int) -> bool:
        n_after = self._n_frames_since(position)
        if n_after <= 0:
            return True
        return bool((self._latest(min(n_after, N_FRAMES)) < threshold_dbfs).all())

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
        enough = islice(reversed(self._voiced_ends), MIN_VOICED_WINDOWS - 1, MIN_VOICED_WINDOWS)
        has_voice = any(end > position for end in enough)  # of the latest so many the first
        return not has_voice or super().is_silent_since(position)


def _percentile(values: Levels, share: float) -> float:
    """As `numpy.percentile`, which takes ten times as long for so few."""
    ordered = np.sort(values)
    place = (len(ordered) - 1) * share / 100.0
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return float(ordered[below] + (ordered[above] - ordered[below]) * (place - below))
