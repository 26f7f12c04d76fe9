"""Prosody of the open turn: how loud and how high the voice was when it fell silent.

Owns the tracks of loudness and of pitch. A caller who has finished mostly lets the voice fall and
ends low in it; one who searches for a word holds level and height to the last sound. The slope of
the pitch within the last syllable tells nothing here, its height against the rest of the turn does
(LOG.md, 2026-11-21, "endpointing, a point for each eagerness"). These are two weak signs among
several, and the only ones that a noisy transcript cannot mislead. Pure; samples are mono int16 at
16 kHz; 0.1 ms of computing for each 32 ms of sound, nearly all of it for the pitch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples

# Numbers without another origin were set by hand; the weights of endpointing are fitted with them.
LEVEL_MS = 10.0
LEVEL_SAMPLES = RECOGNIZER_HZ // 100  # of LEVEL_MS
LEVEL_FRAMES = 400  # 4 s: the level a speaker keeps within a sentence
LEVEL_TAIL_FRAMES = 8  # 80 ms before the last sound: about one syllable's rhyme
LEVEL_MIN_FRAMES = 20  # 200 ms, about a syllable: less has no loud parts to compare with
VOICE_DB = 22.0  # below the loud parts by less than this: a vowel or nasal, not its echo
SOUND_DB = 32.0  # by less than this: any speech sound; a soft final "s" or "t" lies at -25 to -30
RISE_DB = 10.0  # above the room by more than this: a sound, a voiceless consonant too
# Quiet that may lie within a sound: the closure of an English stop lasts 50 to 100 ms (LOG.md,
# 2026-11-21, "a sound's true beginning"). Longer is a pause.
CLOSURE_FRAMES = 10
PLAIN_RISE_DB = 15.0  # by more: not a breath far from the microphone, nor a fan that swells
# No room is taken for quieter: behind a gate or a codec that sends nothing in silence, the noise
# that sets in again is no sound. -75 dBFS; the two rises above it, -65 and -60, are 40 dB below a
# voice (LOG.md, 2026-11-23, "a voice that is half heard").
QUIETEST_ROOM_DB = 15.3

PITCH_HZ = 8_000  # rate it is tracked at, every other sample: the pitch of speech lies below 400 Hz
LOW_HZ, HIGH_HZ = 60, 400
FRAME, HOP = 320, 128  # samples of PITCH_HZ: 40 ms hold two periods of the lowest voice; each 16 ms
SPECTRUM = 512  # >= FRAME and the longest lag
VOICED = 0.55  # autocorrelation at the best lag; breath and hiss lie below
# A lag twice the period fits as well: the shortest lag that fits nearly as well as the best wins.
NEARLY = 0.88
BATCH_FRAMES = 4  # at once: one takes nearly as long
PITCH_FRAMES = 250  # 4 s
RECENT_FRAMES = 25  # 400 ms: a tail without voice for longer says nothing
PITCH_TAIL_FRAMES = 5  # 80 ms of voice, as of the level
PITCH_MIN_TAIL_FRAMES = 3  # more than half of that: the median is then of the tail's own voice
PITCH_MIN_FRAMES = 10  # 160 ms, twice the tail: its median is not that of the tail alone

_LAGS = slice(PITCH_HZ // HIGH_HZ, PITCH_HZ // LOW_HZ + 1)
_WINDOW = np.hanning(FRAME)
_BIAS = np.fft.irfft(np.abs(np.fft.rfft(_WINDOW, SPECTRUM)) ** 2)[: PITCH_HZ // LOW_HZ + 2]


def _percentile(levels: Collection[float], share: float) -> float:
    """As numpy's, bit for bit: that takes 60 us of a list, of which a call has thirty a second."""
    ordered, at = sorted(levels), share * (len(levels) - 1)
    low, beyond = int(at), at - int(at)
    below, above = ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    if beyond >= 0.5:
        return above - (above - below) * (1 - beyond)
    return below + (above - below) * beyond


class LoudnessTrack:
    """Level of the last seconds in dB, a value for every 10 ms."""

    def __init__(self, n_frames: int = LEVEL_FRAMES) -> None:
        self._levels: deque[float] = deque(maxlen=n_frames)
        self._rest: Samples = np.zeros(0, np.int16)

    def feed(self, samples: Samples) -> None:
        joined = np.concatenate((self._rest, samples))
        n_frames = len(joined) // LEVEL_SAMPLES
        self._rest = joined[n_frames * LEVEL_SAMPLES :]
        if n_frames:
            frames = joined[: n_frames * LEVEL_SAMPLES].reshape(n_frames, -1).astype(np.float32)
            power = (frames * frames).sum(axis=1) / LEVEL_SAMPLES + 1.0
            self._levels.extend((10.0 * np.log10(power)).tolist())

    def reset(self) -> None:
        self._levels.clear()
        self._rest = np.zeros(0, np.int16)

    def loud_level_db(self) -> float | None:
        """Return the level of the loud parts (90th percentile), above one unit of int16; None in
        too little.
        """
        if len(self._levels) < LEVEL_MIN_FRAMES:
            return None
        return _percentile(self._levels, 0.9)

    def tail_level_db(self) -> float | None:
        """Mean level of the last 80 ms of sound, relative to the loud parts (90th percentile).

        None where there is too little speech to compare with.
        """
        if len(self._levels) < LEVEL_MIN_FRAMES:
            return None
        levels = np.array(self._levels)
        loud = _percentile(self._levels, 0.9)
        sounding = np.flatnonzero(levels > loud - VOICE_DB)
        end = int(sounding[-1]) + 1
        return float(levels[max(0, end - LEVEL_TAIL_FRAMES) : end].mean()) - loud

    def quiet_ms(self) -> float:
        """How long ago the last sound was, to 10 ms; 0 in noise that hides it."""
        if len(self._levels) < LEVEL_MIN_FRAMES:
            return 0.0
        levels = np.array(self._levels)
        loud = _percentile(self._levels, 0.9)
        sounding = np.flatnonzero(levels > loud - SOUND_DB)
        return LEVEL_MS * (len(levels) - 1 - int(sounding[-1]))

    def sound_ms(self) -> float:
        """How long the sound at the end has lasted, to 10 ms; 0 where it has no beginning here.

        A beginning has the room before it, for longer than a closure; in noise there is none.
        """
        if len(self._levels) < LEVEL_MIN_FRAMES:
            return 0.0
        levels = np.array(self._levels)
        room = max(_percentile(self._levels, 0.1), QUIETEST_ROOM_DB)
        sounding = np.flatnonzero(levels > room + RISE_DB)
        begins = sounding[np.diff(sounding, prepend=-1) > CLOSURE_FRAMES]
        if not len(begins) or len(levels) - 1 - sounding[-1] > CLOSURE_FRAMES:
            return 0.0
        return LEVEL_MS * (len(levels) - int(begins[-1]))

    def n_risen(self, n_frames: int) -> int:
        """How many of the last frames lie plainly above the room."""
        if len(self._levels) < LEVEL_MIN_FRAMES:
            return 0
        levels = list(self._levels)
        plain = max(sorted(levels)[len(levels) // 10], QUIETEST_ROOM_DB) + PLAIN_RISE_DB
        return sum(level > plain for level in levels[-n_frames:])


class PitchTrack:
    """Pitch of the last seconds in semitones, a value for every 16 ms; nan where no voice is."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._semitones: deque[float] = deque(maxlen=PITCH_FRAMES)
        self._rest: NDArray[np.float64] = np.zeros(0)

    def feed(self, samples: Samples) -> None:
        self._rest = np.concatenate((self._rest, samples.astype(np.float64)))
        self._advance(BATCH_FRAMES)

    def _advance(self, at_least: int) -> None:
        """Track the whole frames, where there are `at_least` of them."""
        n_frames = (len(self._rest) - 2 * (FRAME - HOP)) // (2 * HOP)
        if n_frames >= at_least:
            starts = 2 * HOP * np.arange(n_frames)[:, None]
            frames = self._rest[starts + np.arange(2 * FRAME)]
            self._semitones.extend(_semitones(frames).tolist())
            self._rest = self._rest[2 * HOP * n_frames :]

    def tail_semitones(self) -> float | None:
        """The last 80 ms of voice relative to the median of the turn; None in too little voice."""
        self._advance(1)
        track = np.array(self._semitones)
        voiced = track[~np.isnan(track)]
        recent = track[-RECENT_FRAMES:]
        tail = recent[~np.isnan(recent)][-PITCH_TAIL_FRAMES:]
        if len(voiced) < PITCH_MIN_FRAMES or len(tail) < PITCH_MIN_TAIL_FRAMES:
            return None
        return float(np.median(tail) - np.median(voiced))


class Prosody:
    """Loudness and pitch of the open turn."""

    def __init__(self) -> None:
        self.loudness = LoudnessTrack()
        self.pitch = PitchTrack()

    def feed(self, samples: Samples) -> None:
        self.loudness.feed(samples)
        self.pitch.feed(samples)

    def reset(self) -> None:
        self.loudness.reset()
        self.pitch.reset()


def _semitones(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pitch of frames [n, 2 * FRAME] at 16 kHz; [n], nan where no voice is.

    Source: Boersma (1993), autocorrelation divided by that of the window.
    """
    narrow = 0.5 * (frames[:, ::2] + frames[:, 1::2])
    narrow = (narrow - narrow.mean(axis=1, keepdims=True)) * _WINDOW
    spectrum = np.fft.rfft(narrow, SPECTRUM, axis=1)
    power = spectrum.real**2 + spectrum.imag**2
    fits = np.fft.irfft(power, axis=1)[:, : len(_BIAS)] / _BIAS
    fits /= fits[:, :1] + 1e-9
    here = fits[:, _LAGS]
    before = fits[:, _LAGS.start - 1 : _LAGS.stop - 1]
    after = fits[:, _LAGS.start + 1 : _LAGS.stop + 1]
    best = here.max(axis=1, keepdims=True)
    is_peak = (here >= before) & (here >= after) & (here >= NEARLY * best) & (best >= VOICED)
    place = is_peak.argmax(axis=1)
    lag = place + _LAGS.start + _off_centre(before, here, after, place)
    return np.where(is_peak.any(axis=1), 12.0 * np.log2(PITCH_HZ / lag), np.nan)


def _off_centre(
    before: NDArray[np.float64],
    here: NDArray[np.float64],
    after: NDArray[np.float64],
    place: NDArray[np.intp],
) -> NDArray[np.float64]:
    """Return where the parabola through a peak and its neighbours is highest, in lags from the
    peak.
    """
    rows = np.arange(len(place))
    left, top, right = before[rows, place], here[rows, place], after[rows, place]
    bend = np.minimum(left - 2.0 * top + right, -1e-9)
    return np.clip(0.5 * (left - right) / bend, -0.5, 0.5)
