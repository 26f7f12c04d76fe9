"""How the voice stood when it fell silent: does it die away, or was it held?

Owns the loudness track of the open turn, kept beside its pitch track (`voiceloop.listening.pitch`).
A speaker who has finished lets the voice fall; one who searches for a word holds its level to the
last sound. These are two weak voices among several, and the only ones that a noisy transcript
cannot mislead. Pure; samples are mono int16 at 16 kHz.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from voiceloop.listening.pitch import PitchTrack

FRAME = 160  # samples: 10 ms
TRACK_FRAMES = 400  # 4 s: the level a speaker keeps within a sentence
TAIL_FRAMES = 8  # 80 ms before the last sound: about one syllable's rhyme
VOICE_DB = 22.0  # below the loud parts by less than this: a vowel or nasal, not its echo
SOUND_DB = 32.0  # by less than this: any speech sound; a soft final "s" or "t" lies at -25 to -30
MIN_FRAMES = 20
RISE_DB = 10.0  # above the room by more than this: a sound, a voiceless consonant too
# Quiet that may lie within a sound: the closure of a stop lasts 50 to 100 ms. Longer is a pause.
CLOSURE_FRAMES = 10
# Where a sound's beginning is looked for: 300 ms before the detector's onset, its two windows, and
# of the room before that more than a closure.
ONSET_FRAMES = 48


class LoudnessTrack:
    """Levels of the last seconds, a value per 10 ms."""

    def __init__(self, n_frames: int = TRACK_FRAMES) -> None:
        self._levels: deque[float] = deque(maxlen=n_frames)
        self._rest: NDArray[np.int16] = np.zeros(0, np.int16)

    def feed(self, samples: NDArray[np.int16]) -> None:
        joined = np.concatenate((self._rest, samples))
        n_frames = len(joined) // FRAME
        self._rest = joined[n_frames * FRAME :]
        if n_frames:
            frames = joined[: n_frames * FRAME].reshape(n_frames, FRAME).astype(np.float32)
            power = (frames * frames).mean(axis=1) + 1.0
            self._levels.extend((10.0 * np.log10(power)).tolist())

    def reset(self) -> None:
        self._levels.clear()
        self._rest = np.zeros(0, np.int16)

    def tail_level_db(self) -> float | None:
        """Mean level of the last 80 ms of sound, relative to the loud parts (90th percentile).

        None where there is too little speech to compare with.
        """
        if len(self._levels) < MIN_FRAMES:
            return None
        levels = np.array(self._levels)
        loud = float(np.percentile(levels, 90))
        sounding = np.flatnonzero(levels > loud - VOICE_DB)
        end = int(sounding[-1]) + 1
        return float(levels[max(0, end - TAIL_FRAMES) : end].mean()) - loud

    def quiet_ms(self) -> float:
        """How long ago the last sound was, to 10 ms; 0 in noise that hides it."""
        if len(self._levels) < MIN_FRAMES:
            return 0.0
        levels = np.array(self._levels)
        loud = float(np.percentile(levels, 90))
        sounding = np.flatnonzero(levels > loud - SOUND_DB)
        return 10.0 * (len(levels) - 1 - int(sounding[-1]))

    def sound_ms(self) -> float:
        """How long the sound at the end has lasted, to 10 ms; 0 where it has no beginning here.

        A beginning has the room before it, for longer than a closure; in noise there is none.
        """
        if len(self._levels) < MIN_FRAMES:
            return 0.0
        levels = np.array(self._levels)
        room = float(np.percentile(levels, 10))
        sounding = np.flatnonzero(levels > room + RISE_DB)
        begins = sounding[np.diff(sounding, prepend=-1) > CLOSURE_FRAMES]
        if not len(begins) or len(levels) - 1 - sounding[-1] > CLOSURE_FRAMES:
            return 0.0
        return 10.0 * (len(levels) - int(begins[-1]))


class Prosody:
    """Loudness and pitch of the open turn."""

    def __init__(self) -> None:
        self.loudness = LoudnessTrack()
        self.pitch = PitchTrack()

    def feed(self, samples: NDArray[np.int16]) -> None:
        self.loudness.feed(samples)
        self.pitch.feed(samples)

    def reset(self) -> None:
        self.loudness.reset()
        self.pitch.reset()
