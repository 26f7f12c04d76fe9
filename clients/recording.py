"""Recordings: mono PCM16 in memory, read from audio files and written as WAV.

What a person hands to ``talk --wav`` passes through ``read_recording``: any format, rate and number
of channels. What is measured on passes through ``read_wav``, which accepts exactly one shape (mono,
16-bit, not empty) and says what it found otherwise: silently mixing channels down or padding bits
would make the figures measured on that file mean something else.
"""

from __future__ import annotations

import wave
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.errors import RecordingError
from clients.outputs import writing

Samples = NDArray[np.int16]

MAX_RECORDING_S = 600.0  # what a person speaks into one call; more is a mistaken file
MAX_RATE_HZ = 192_000  # of sound cards; a header that claims more is a broken one
READ_FRAMES = 65_536  # mixed down piece by piece: the file's channels are never all in memory

RATES_HZ = (8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)


@dataclass(frozen=True, slots=True)
class Recording:
    """Mono audio: ``samples`` int16 of shape (n,), at ``rate_hz``."""

    samples: Samples
    rate_hz: int

    @property
    def duration_ms(self) -> float:
        return 1000.0 * len(self.samples) / self.rate_hz

    def at_rate(self, rate_hz: int) -> Recording:
        """The same audio at another rate (polyphase filter, the whole recording at once)."""
        if rate_hz == self.rate_hz:
            return self
        # Imported here: scipy.signal takes a quarter of a second, and most commands never resample.
        from scipy.signal import resample_poly

        common = gcd(rate_hz, self.rate_hz)
        wave_f = resample_poly(
            self.samples.astype(np.float32), rate_hz // common, self.rate_hz // common
        )
        return Recording(to_int16(wave_f), rate_hz)


def to_int16(samples: NDArray[np.floating]) -> Samples:
    """Round to int16, clipping what lies outside."""
    rounded: Samples = np.clip(np.rint(samples), -32768, 32767).astype(np.int16)
    return rounded


def read_recording(path: Path) -> Recording:
    """Read an audio file of any format, rate and number of channels that libsndfile knows.

    The channels are mixed to their mean. The rate stays; `Recording.at_rate` converts it.

    Raises:
        RecordingError: the file is absent, no audio, empty, or longer than ten minutes.
    """
    import soundfile

    expected = "expected an audio file (WAV, FLAC, Ogg, MP3 ...)"
    if not path.exists():
        raise RecordingError(f"{expected}, found no file at {path}")
    if path.is_dir():
        raise RecordingError(f"{expected}, found a folder at {path}")
    try:
        with soundfile.SoundFile(path) as file:
            rate_hz = int(file.samplerate)
            if not RATES_HZ[0] <= rate_hz <= MAX_RATE_HZ:
                bounds = f"{RATES_HZ[0]} to {MAX_RATE_HZ} Hz"
                raise RecordingError(f"{expected} of {bounds}, found {rate_hz} Hz in {path}")
            n_most = int(MAX_RECORDING_S * rate_hz)
            mixed = [np.zeros(0, np.float32)]
            for block in file.blocks(READ_FRAMES, dtype="float32", always_2d=True):
                n_most -= len(block)
                if n_most < 0:
                    most = f"at most {MAX_RECORDING_S:.0f} s"
                    raise RecordingError(f"{expected} of {most}, found a longer one: {path}")
                mixed.append(block.mean(axis=1))
    except (soundfile.LibsndfileError, OSError) as error:
        raise RecordingError(f"{expected}, found none in {path}: {error}") from error
    samples = to_int16(np.nan_to_num(np.concatenate(mixed)) * 32768.0)
    if len(samples) == 0:
        raise RecordingError(f"{expected}, found one without samples: {path} is empty")
    return Recording(samples, rate_hz)


def read_wav(path: Path) -> Recording:
    """Read a mono 16-bit WAV.

    Raises:
        RecordingError: the file is absent, no WAV, stereo, not 16-bit PCM, of an unusual sample
            rate, or empty.
    """
    expected = "expected a mono 16-bit PCM WAV file"
    if not path.exists():
        raise RecordingError(f"{expected}, found no file at {path}")
    if path.is_dir():
        raise RecordingError(f"{expected}, found a folder at {path}")
    try:
        with wave.open(str(path), "rb") as file:
            n_channels, width, rate_hz, n_frames, *_ = file.getparams()
            data = file.readframes(n_frames)
    except (wave.Error, EOFError, OSError) as error:
        reason = str(error) or "it ends within its header"
        remedy = f"sox {path} -c 1 -b 16 OUT.wav makes one of most recordings"
        raise RecordingError(
            f"{expected}, found no readable WAV in {path}: {reason} ({remedy})"
        ) from error
    if n_channels != 1:
        kind = "stereo" if n_channels == 2 else f"{n_channels} channels"
        raise RecordingError(f"{expected}, found {kind} in {path}")
    if width != 2:
        raise RecordingError(f"{expected}, found {8 * width}-bit samples in {path}")
    if rate_hz not in RATES_HZ:
        rates = ", ".join(str(rate) for rate in RATES_HZ)
        raise RecordingError(f"{expected} at one of {rates} Hz, found {rate_hz} Hz in {path}")
    samples = np.frombuffer(data[: len(data) // 2 * 2], dtype="<i2").astype(np.int16)
    if len(samples) == 0:
        raise RecordingError(f"{expected}, found one without samples: {path} is empty")
    return Recording(samples, rate_hz)


def read_flac(path: Path) -> Recording:
    """Read a mono FLAC of the bundled call.

    Raises:
        RecordingError: the file is absent, not FLAC, or not mono.
    """
    import soundfile

    try:
        samples, rate_hz = soundfile.read(path, dtype="int16")
    except (soundfile.LibsndfileError, OSError) as error:
        raise RecordingError(f"expected a FLAC file at {path}, found none: {error}") from error
    if samples.ndim != 1:
        raise RecordingError(f"expected mono FLAC, found {samples.shape[1]} channels in {path}")
    return Recording(samples, int(rate_hz))


def write_flac(path: Path, recording: Recording) -> None:
    import soundfile

    soundfile.write(path, recording.samples, recording.rate_hz, format="FLAC", subtype="PCM_16")


def write_wav(path: Path, channels: tuple[Samples, ...], rate_hz: int) -> None:
    """Write one WAV with the given channels; shorter ones are padded with silence.

    Raises:
        OutputError: it cannot be written.
    """
    n_frames = max((len(channel) for channel in channels), default=0)
    frames = np.zeros((n_frames, len(channels)), dtype="<i2")
    for index, channel in enumerate(channels):
        frames[: len(channel), index] = channel
    with writing(path), wave.open(str(path), "wb") as file:
        file.setnchannels(len(channels))
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(frames.tobytes())
