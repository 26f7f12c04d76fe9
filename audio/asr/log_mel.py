"""Log-mel features of a growing stream, equal to those of the whole recording.

The features of NVIDIA's FastConformer models: pre-emphasis, a Hann window of 25 ms every 10 ms,
power, slaney mel filters, natural logarithm, no normalization. Frame f is centred at sample
160 * f, so it waits for half a window of sound after that.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frames import Samples

LOG_GUARD = 2.0**-24  # as in the checkpoints' own front end


class LogMel:
    """The constants of a front end; extractor: transformers' feature extractor of the model."""

    def __init__(self, torch: Any, extractor: Any, device: Any) -> None:
        self._torch = torch
        self.hop: int = extractor.hop_length
        self.window: int = extractor.win_length
        self.preemphasis: float = extractor.preemphasis or 0.0
        self._n_fft: int = extractor.n_fft
        stored = getattr(torch, getattr(extractor, "mel_filters_dtype", "float32"))
        window = torch.hann_window(self.window, periodic=False).to(stored).float()
        self._taper = window.to(device)
        self._filters = extractor.mel_filters.to(stored).float().to(device)
        self._device = device

    def n_samples(self, n_frames: int) -> int:
        """Samples that must have come before the first n_frames frames are known."""
        return (n_frames - 1) * self.hop + self.window // 2

    def features(self, emphasized: NDArray[np.float32], n_frames: int) -> Any:
        """float32 [n_frames, n_bins] of emphasized samples that start half a window early."""
        torch = self._torch
        wave = torch.from_numpy(emphasized).to(self._device)
        # The window may stand anywhere in the transform: its place turns phases, not powers.
        frames = wave.unfold(0, self.window, self.hop)[:n_frames] * self._taper
        power = torch.fft.rfft(frames, n=self._n_fft).abs().square()
        return torch.log(power @ self._filters.T + LOG_GUARD)


class MelStream:
    """The samples of one segment that later frames still need; `fork` copies it."""

    def __init__(self, front_end: LogMel) -> None:
        self._front_end = front_end
        self._last = 0.0  # the sample before, for the pre-emphasis
        # Half a window of zeros stands before the first sample.
        self._emphasized = np.zeros(front_end.window // 2, np.float32)
        self.n_samples = 0
        self.n_taken = 0  # frames

    def fork(self) -> "MelStream":
        copy = MelStream(self._front_end)
        copy._last, copy._emphasized = self._last, self._emphasized
        copy.n_samples, copy.n_taken = self.n_samples, self.n_taken
        return copy

    def push(self, samples: Samples) -> None:
        """int16 [n] at 16 kHz."""
        if not len(samples):
            return
        wave = samples.astype(np.float32) / np.float32(32768.0)
        before = np.concatenate((np.array([self._last], np.float32), wave[:-1]))
        emphasized = wave - np.float32(self._front_end.preemphasis) * before
        self._emphasized = np.concatenate((self._emphasized, emphasized))
        self._last = float(wave[-1])
        self.n_samples += len(samples)

    def has(self, n_frames: int) -> bool:
        """Whether the next n_frames frames are known."""
        return self.n_samples >= self._front_end.n_samples(self.n_taken + n_frames)

    def take(self, n_frames: int) -> Any:
        """The next frames, float32 [n_frames, n_bins]; only where `has` says so."""
        front_end = self._front_end
        length = (n_frames - 1) * front_end.hop + front_end.window
        features = front_end.features(self._emphasized[:length], n_frames)
        self._emphasized = self._emphasized[n_frames * front_end.hop :]
        self.n_taken += n_frames
        return features
