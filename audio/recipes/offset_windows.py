"""The sound that a recognizer holds when somebody falls silent, as training and tests hear it.

Owns the making of windows for the end-of-turn head: from somewhere in the turn to some moment after
a last sound. What follows that sound, how it fades, how loud, how fast, through which line and in
what noise it all is, is drawn without knowing whether the turn was over. A head can learn that only
from what came before the silence; `silence_of` gives the rest, where a probe must learn nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import butter, resample_poly, sosfiltfilt

from ..codec import decode, encode
from ..frames import RECOGNIZER_HZ, Samples
from ..resample import Resampler
from .paused_speech import LEAST_PAUSE_MS, MS, PausedTurn, own_room, with_room

WINDOWS_VERSION = 1  # to be raised with every change of this file or of paused_speech
PRE_ROLL_MS = 300.0  # before a turn, as the listener keeps it
ROOM_MS = 1000.0  # made behind a last sound: more than any window reads
LEAST_CONTEXT_MS, MOST_CONTEXT_MS = 1500.0, 4500.0  # of the turn, before the last sound
# When a window is read: at the detector's first quiet window, or again while the silence lasts.
AT_OFFSET_MS, LATER_MS, SHARE_AT_OFFSET = (40.0, 140.0), (140.0, 450.0), 0.6
FADE_MS = (2.0, 20.0)  # at the last sound, of every window alike
SPEECH_DBFS = -23.0
GAIN_DB = 10.0
ROOM_GAIN_DB = 4.0
PINK_SHARE, PINK_DBFS = 0.25, (-75.0, -50.0)
NARROW_SHARE, NOISE_SHARE, SNR_DB = 0.4, 0.35, (5.0, 25.0)
SPEEDS, SPEED_SHARE = ((9, 10), (19, 20), (21, 20), (11, 10)), 0.5
FULL_SCALE = 32768.0


@dataclass(frozen=True, slots=True)
class Offset:
    """A last sound of a turn: at_ms in it, and whether the turn was over then."""

    turn: PausedTurn
    at_ms: float
    lasts_ms: float  # until the next sound; of an end ROOM_MS
    is_over: bool


@dataclass(frozen=True, slots=True)
class Window:
    """samples: int16 [n] at 16 kHz; n_silence: of them, those behind the last sound."""

    samples: Samples
    n_silence: int


def offsets_of(turn: PausedTurn) -> list[Offset]:
    """The turn's pauses, then its end."""
    holds = [Offset(turn, start, end - start, False) for start, end in turn.pauses]
    kept = [hold for hold in holds if hold.lasts_ms >= LEAST_PAUSE_MS]
    return [*kept, Offset(turn, turn.end_ms, ROOM_MS, True)]


def levelled(turn: PausedTurn) -> PausedTurn:
    """Rumble out, speech at -23 dBFS, and its own room behind it."""
    rumble = butter(2, 50, "high", fs=RECOGNIZER_HZ, output="sos")
    centred = sosfiltfilt(rumble, turn.samples.astype(np.float64))
    loud = np.abs(centred) > np.abs(centred).max() / 30
    rms = float(np.sqrt(np.mean(np.square(centred[loud])))) if loud.any() else 1.0
    scaled = centred * FULL_SCALE * 10.0 ** (SPEECH_DBFS / 20.0) / max(rms, 1.0)
    kept = PausedTurn(
        turn.name, turn.kind, turn.speaker, _int16(scaled),
        turn.start_ms, turn.end_ms, turn.pauses, turn.text,
    )  # fmt: skip
    return with_room(kept, PRE_ROLL_MS, ROOM_MS)


def varied(offset: Offset, noises: Sequence[Samples], chance: random.Random) -> Window:
    """One more way in which the same last sound might have been heard."""
    span_ms = AT_OFFSET_MS if chance.random() < SHARE_AT_OFFSET else LATER_MS
    n_silence = int(chance.uniform(*span_ms) * MS)
    context_ms = chance.uniform(LEAST_CONTEXT_MS, MOST_CONTEXT_MS)
    at = int(offset.at_ms * MS)
    n_fade = int(chance.uniform(*FADE_MS) * MS)
    spoken = offset.turn.samples[max(0, at - int(context_ms * MS)) : at + n_fade].astype(np.float64)
    spoken[len(spoken) - n_fade :] *= np.linspace(1.0, 0.0, n_fade)
    room = _room(offset.turn, n_silence, chance)
    sound = np.concatenate([spoken[:-n_fade], room])
    sound[len(spoken) - n_fade : len(spoken)] += spoken[-n_fade:]
    if chance.random() < SPEED_SHARE:
        up, down = chance.choice(SPEEDS)
        sound, n_silence = resample_poly(sound, up, down), n_silence * up // down
    if noises and chance.random() < NOISE_SHARE:
        sound = sound + _noise(chance.choice(list(noises)), len(sound), chance)
    sound *= 10.0 ** (chance.uniform(-GAIN_DB, GAIN_DB) / 20.0)
    samples = _int16(sound)
    if chance.random() < NARROW_SHARE:
        samples = over_u_law(samples)
    return Window(samples, n_silence)


def silence_of(window: Window) -> Samples:
    """All of a window that lies behind its last sound and the longest fade."""
    n_fade = int(FADE_MS[1] * MS * 11 / 10)  # as slow as speech is made
    return window.samples[len(window.samples) - window.n_silence + n_fade :]


def _room(turn: PausedTurn, n_samples: int, chance: random.Random) -> NDArray[np.float64]:
    if chance.random() < PINK_SHARE:
        rng = np.random.default_rng(chance.randrange(2**31))
        spectrum = np.fft.rfft(rng.standard_normal(n_samples + 2))
        spectrum /= np.sqrt(np.arange(len(spectrum)) + 1.0)
        pink = np.fft.irfft(spectrum, n_samples + 2)[:n_samples]
        level = FULL_SCALE * 10.0 ** (chance.uniform(*PINK_DBFS) / 20.0)
        return np.asarray(pink * level / max(float(pink.std()), 1e-9), np.float64)
    start = chance.randrange(RECOGNIZER_HZ)
    room = own_room(turn, start + n_samples)[start:]
    return room * 10.0 ** (chance.uniform(-ROOM_GAIN_DB, ROOM_GAIN_DB) / 20.0)


def _noise(noise: Samples, n_samples: int, chance: random.Random) -> NDArray[np.float64]:
    start = chance.randrange(len(noise))
    piece = np.take(noise, range(start, start + n_samples), mode="wrap").astype(np.float64)
    wanted = FULL_SCALE * 10.0 ** ((SPEECH_DBFS - chance.uniform(*SNR_DB)) / 20.0)
    return piece * wanted / max(float(np.sqrt(np.mean(np.square(piece)))), 1.0)


def over_u_law(samples: Samples) -> Samples:
    down, up = Resampler(RECOGNIZER_HZ, 8_000), Resampler(8_000, RECOGNIZER_HZ)
    narrow = np.concatenate([down.push(samples), down.flush()])
    heard = decode(encode(narrow, "pcmu"), "pcmu")
    return np.concatenate([up.push(heard), up.flush()])[: len(samples)]


def _int16(sound: NDArray[np.float64]) -> Samples:
    return np.clip(np.rint(sound), -32768, 32767).astype(np.int16)
