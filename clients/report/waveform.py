"""Waveform truth: where speech really begins and ends, read from the samples alone.

Every latency figure rests on these functions, and none of them trusts a model or a transcript.
The caller's speech is judged on the clean utterance, before room noise is mixed in, and relative
to its own peak; the agent's on what arrived, against a fixed level.

Source: DESIGN.md section 5; the 35 dB and -45 dBFS levels are its definitions of the gap.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clients.recording import Samples, to_int16

FRAME_MS = 10
WITHIN_PEAK_DB = 35.0
AUDIBLE_DBFS = -45.0
FULL_SCALE = 32768.0


def frame_levels_db(samples: Samples, rate_hz: int) -> NDArray[np.float64]:
    """RMS level in dBFS of each whole or started 10 ms frame; silence is -200 dBFS."""
    n_frame = rate_hz * FRAME_MS // 1000
    n_frames = -(-len(samples) // n_frame)
    padded = np.zeros(n_frames * n_frame, dtype=np.float64)
    padded[: len(samples)] = samples
    power = np.mean(np.square(padded.reshape(n_frames, n_frame) / FULL_SCALE), axis=1)
    levels: NDArray[np.float64] = 10.0 * np.log10(np.maximum(power, 1e-20))
    return levels


def speech_frames(samples: Samples, rate_hz: int) -> NDArray[np.intp]:
    """Indices of the 10 ms frames within 35 dB of the loudest one; empty for digital silence."""
    levels = frame_levels_db(samples, rate_hz)
    if len(levels) == 0 or levels.max() <= -200.0:
        return np.zeros(0, dtype=np.intp)
    return np.flatnonzero(levels >= levels.max() - WITHIN_PEAK_DB)


def speech_start(samples: Samples, rate_hz: int) -> int | None:
    """Position of the first sample of the first speech frame; None where there is no speech."""
    frames = speech_frames(samples, rate_hz)
    return int(frames[0]) * (rate_hz * FRAME_MS // 1000) if len(frames) else None


def speech_end(samples: Samples, rate_hz: int) -> int | None:
    """Position just after the last speech frame (the caller's true end); None without speech."""
    frames = speech_frames(samples, rate_hz)
    if len(frames) == 0:
        return None
    return min(len(samples), (int(frames[-1]) + 1) * (rate_hz * FRAME_MS // 1000))


def pauses(samples: Samples, rate_hz: int, at_least_ms: float) -> list[tuple[int, int]]:
    """Stretches (start, end) in samples between speech frames that last ``at_least_ms`` or more.

    Silence before the first and after the last speech frame is not a pause.
    """
    frames = speech_frames(samples, rate_hz)
    n_frame = rate_hz * FRAME_MS // 1000
    found = []
    for before, after in zip(frames[:-1], frames[1:], strict=True):
        if (after - before - 1) * FRAME_MS >= at_least_ms:
            found.append((int(before + 1) * n_frame, int(after) * n_frame))
    return found


def first_audible(samples: Samples, after: int = 0) -> int | None:
    """Position of the first sample above -45 dBFS at or after ``after``; None if there is none."""
    loud = np.flatnonzero(np.abs(samples[after:].astype(np.int32)) > audible_amplitude())
    return after + int(loud[0]) if len(loud) else None


def last_audible(samples: Samples) -> int | None:
    """Position of the last sample above -45 dBFS; None if there is none."""
    loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > audible_amplitude())
    return int(loud[-1]) if len(loud) else None


def audible_amplitude() -> float:
    """The absolute int16 value of -45 dBFS (about 184)."""
    return FULL_SCALE * float(10.0 ** (AUDIBLE_DBFS / 20.0))


def room_noise(n_samples: int, rate_hz: int, seed: int, level_dbfs: float = -62.0) -> Samples:
    """A quiet room, made here: low-passed noise at ``level_dbfs`` RMS, the same for the same seed.

    Digital silence between utterances would flatter a voice detector; a real line is never silent.
    """
    rng = np.random.default_rng(seed)
    white = rng.standard_normal(n_samples + 1)
    spectrum = np.fft.rfft(white)
    frequency_hz = np.fft.rfftfreq(n_samples + 1, 1.0 / rate_hz)
    # -3 dB an octave above 60 Hz and nothing below it: ventilation and distance, not hiss.
    spectrum *= np.where(frequency_hz < 60.0, 0.0, 1.0 / np.sqrt(np.maximum(frequency_hz, 60.0)))
    shaped = np.fft.irfft(spectrum, n_samples + 1)[:n_samples]
    rms = float(np.sqrt(np.mean(np.square(shaped)))) if n_samples else 1.0
    scale = FULL_SCALE * 10.0 ** (level_dbfs / 20.0) / max(rms, 1e-12)
    return to_int16(shaped * scale)
