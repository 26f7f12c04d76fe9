"""The places of a response's words in its sound: the protocol tells text and sound, and no times.

The letters share the time in which something sounds, so that a pause holds no word. Where each
piece of text comes just before its own sound, as VoiceLoop sends it, the word stands there.
"""

from __future__ import annotations

import re
from bisect import bisect_left

import numpy as np

from audio.frames import VOICE_HZ
from voiceloop.backends import SpokenWord

WORD = re.compile(r"\S+")
FRAME_MS = 10
FRAME_BYTES = 2 * VOICE_HZ * FRAME_MS // 1000
MS_PER_LETTER = 75.0  # English at 170 words a minute, without its pauses; replaced by what is heard
# A frame sounds where it is above either: of a quiet room, and of the loudest frame so far.
QUIET_RMS, QUIET_RATIO = 50.0, 0.04
# Text comes with its sound where so much of the time that its letters take has passed between two
# pieces of it, and their place and ours are no further apart. Chosen.
LEAST_PACE, MOST_PACE = 0.5, 2.0
MOST_APART_MS = 600.0


class WordTimes:
    """The times of one response's words: `hear` its sound and `read` its text, as they come; `take`
    the words.

    ms_per_letter: of this voice, as far as it is known; of this response once it is over.
    """

    def __init__(self, ms_per_letter: float = MS_PER_LETTER) -> None:
        self.ms_per_letter = ms_per_letter
        self.text = ""
        self.n_taken = 0  # characters of it
        self.words: list[SpokenWord] = []  # those that were taken
        self._rest = b""  # of sound, less than a frame
        self._peak = 0.0
        self._sounding_ms: list[float] = []  # up to the end of each frame
        self._at_ms = 0.0  # of what sounds: behind the last word
        self._read_at: tuple[int, float] | None = None  # where the last text begins, and came
        self._anchors: list[tuple[int, float]] = []  # where text stands for sure

    @property
    def sound_ms(self) -> float:
        return FRAME_MS * (len(self._sounding_ms) + len(self._rest) / FRAME_BYTES)

    @property
    def _heard_ms(self) -> float:
        return self._sounding_ms[-1] if self._sounding_ms else 0.0

    def hear(self, samples: bytes) -> None:
        """PCM16 at 24 kHz."""
        sound = self._rest + samples
        n_frames = len(sound) // FRAME_BYTES
        self._rest = sound[n_frames * FRAME_BYTES :]
        if not n_frames:
            return
        frames = np.frombuffer(sound[: n_frames * FRAME_BYTES], "<i2").astype(np.float32)
        for rms in np.sqrt(np.mean(frames.reshape(n_frames, -1) ** 2, axis=1)):
            self._peak = max(self._peak, float(rms))
            sounds = rms > max(QUIET_RMS, QUIET_RATIO * self._peak)
            self._sounding_ms.append(self._heard_ms + FRAME_MS * bool(sounds))

    def read(self, text: str) -> None:
        at, came_ms = len(self.text), self._heard_ms
        if self._read_at is not None:
            before, before_ms = self._read_at
            needed_ms = self.ms_per_letter * _letters(self.text[before:])
            paces = LEAST_PACE * needed_ms <= came_ms - before_ms <= MOST_PACE * needed_ms
            if needed_ms and paces:
                self._anchors.append((at, came_ms))
        self._read_at = at, came_ms
        self.text += text

    def take(self, *, is_over: bool = False) -> tuple[SpokenWord, ...]:
        """The words that have begun to sound; once it is over, all of them."""
        found = list(WORD.finditer(self.text, self.n_taken))
        rate = self.ms_per_letter
        n_letters = sum(_letters(one.group()) for one in found)
        if is_over and n_letters:
            rate = max(0.0, self._heard_ms - self._at_ms) / n_letters
        taken = []
        for word in found:
            is_whole = is_over or word.end() < len(self.text)
            self._snap(word.start())
            has_begun = bool(self.sound_ms) and self._at_ms <= self._heard_ms
            if not is_over and not (is_whole and has_begun):
                break
            start_ms, self._at_ms = self._at_ms, self._at_ms + rate * _letters(word.group())
            spoken = SpokenWord(
                word.group(), self._time_ms(start_ms), self._time_ms(self._at_ms), word.end()
            )
            taken.append(spoken)
            self.n_taken = word.end()
        if is_over:
            n_all = _letters(self.text)
            self.ms_per_letter = self._heard_ms / n_all if n_all else self.ms_per_letter
        self.words += taken
        return tuple(taken)

    def _snap(self, at: int) -> None:
        """Go to where the text stands for sure, if it is near."""
        while self._anchors and self._anchors[0][0] <= at:
            _, sure_ms = self._anchors.pop(0)
            if abs(sure_ms - self._at_ms) <= MOST_APART_MS:
                self._at_ms = sure_ms

    def _time_ms(self, sounding_ms: float) -> float:
        """Return when so much of the sound that is heard has passed."""
        frame = bisect_left(self._sounding_ms, sounding_ms)
        if frame >= len(self._sounding_ms):
            return self.sound_ms + sounding_ms - self._heard_ms
        return FRAME_MS * (frame + 1) - (self._sounding_ms[frame] - sounding_ms)


def _letters(text: str) -> int:
    """Return what takes time to be said; a word of marks alone takes that of one."""
    return sum(max(1, sum(map(str.isalnum, word))) for word in text.split())
