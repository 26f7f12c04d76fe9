"""Sounds in which nobody speaks, and which no recognizer may find a word in."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples

SEED = 5
EDGE_S = 0.2
LENGTHS_S = (0.6, 1.0, 2.0, 3.5)
N_OF_EACH_RECORDING = 12
# Colours of made noise: the power of 1/f that its amplitude falls with.
COLOURS = {"white": 0.0, "pink": 0.5, "brown": 1.0}
N_OF_EACH_COLOUR, N_BREATHS, N_SILENCES, N_CLICKS = 16, 28, 20, 20


def wordless(recordings: Mapping[str, Samples]) -> Iterator[tuple[str, Samples]]:
    """(kind, int16 at 16 kHz) of 116 made sounds and 12 of each recording, always the same.

    kind: "babble" for recordings of that name, in which there are voices; else what it is.
    """
    generator = np.random.default_rng(SEED)
    for name, noise in recordings.items():
        for _ in range(N_OF_EACH_RECORDING):
            n = int(generator.choice(LENGTHS_S) * RECOGNIZER_HZ)
            start = int(generator.integers(0, len(noise) - n))
            gain = 10 ** (generator.choice((-25, -15, -5, 5)) / 20)
            kind = "babble" if name.startswith("babble") else "recorded noise"
            yield kind, _edged(gain * noise[start : start + n] / 32768.0, generator)
    for colour in COLOURS.values():
        for _ in range(N_OF_EACH_COLOUR):
            n = int(generator.choice(LENGTHS_S) * RECOGNIZER_HZ)
            level = 10 ** (generator.choice((-60, -50, -40, -30)) / 20)
            yield "made noise", _edged(level * _coloured(n, colour, generator), generator)
    for _ in range(N_BREATHS):
        yield "breath", _edged(_breath(generator), generator)
    for _ in range(N_SILENCES):
        n = int(generator.choice((1.0, 2.0, 4.0)) * RECOGNIZER_HZ)
        yield "silence", _edged(np.zeros(n), generator)
    for _ in range(N_CLICKS):
        yield "clicks", _edged(_clicks(generator), generator)


def _coloured(n: int, colour: float, generator: np.random.Generator) -> NDArray[np.float64]:
    """Noise of mean square 1."""
    spectrum = np.fft.rfft(generator.normal(size=n))
    hz = np.maximum(np.fft.rfftfreq(n, 1 / RECOGNIZER_HZ), 20.0)
    noise = np.fft.irfft(spectrum * hz**-colour, n)
    return noise / noise.std()


def _breath(generator: np.random.Generator) -> NDArray[np.float64]:
    """Noise around 1.5 kHz that swells and dies away once."""
    n = int(generator.choice((0.6, 1.0, 1.5)) * RECOGNIZER_HZ)
    swell = np.sin(np.pi * np.clip((np.linspace(0.0, 1.0, n) - 0.1) / 0.7, 0.0, 1.0)) ** 2
    spectrum = np.fft.rfft(_coloured(n, 0.3, generator) * swell)
    hz = np.fft.rfftfreq(n, 1 / RECOGNIZER_HZ)
    level = 10 ** (generator.choice((-45, -38, -30)) / 20)
    return level * np.fft.irfft(spectrum * np.exp(-(((hz - 1500.0) / 1500.0) ** 2)), n)


def _clicks(generator: np.random.Generator) -> NDArray[np.float64]:
    """Three of 5 ms within 1.5 s."""
    sound = np.zeros(3 * RECOGNIZER_HZ // 2)
    for start in generator.integers(0, len(sound) - 200, 3):
        sound[start : start + 80] += generator.normal(0, 0.2, 80) * np.exp(-np.arange(80) / 15)
    return sound


def _edged(sound: NDArray[np.float64], generator: np.random.Generator) -> Samples:
    """With silence before and after, over a line's own hiss."""
    padded = np.pad(sound, round(EDGE_S * RECOGNIZER_HZ)) * 32768.0
    hiss = generator.normal(0.0, 3.0, len(padded))
    return np.clip(padded + hiss, -32768, 32767).astype(np.int16)
