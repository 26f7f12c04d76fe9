"""The agent's own voice in the caller's microphone, told from the caller by what was played.

Owns a reference of the agent's sound on the caller's audio clock, and the delay after which it
comes back. What came back is replaced by the room's noise before anything else hears it: the voice
detector, the recognizer, the judge of barge-ins. A client that cancels its echo sends none, and
nothing is changed then. It knows no line, only what was sent and when, so it holds for every door.
Pure. While the agent can be heard, 20 ms of sound take 0.3 ms of computing, else next to none.

Source: the delay by generalized cross-correlation with whitening (C. Knapp and G. Carter, 1976);
the share by least squares over a short filter. No echo is subtracted: of a loudspeaker in a room
such a filter explains two thirds, which tells whose sound it is and would not remove it.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ, Samples
from audio.resample import Resampler

Wave = NDArray[np.float32]

ECHO_HZ = 8_000  # what a telephone lets through tells enough, at a quarter of the cost
MS = ECHO_HZ // 1000
LONGEST_DELAY_MS = 800  # two networks, a jitter buffer, a loudspeaker's own buffer; chosen
LONGEST_AHEAD_MS = 1000  # of what is sent before it plays; a line leads by 400 at the most
# A client that ran dry for no longer than this plays on as if it had not: frames come unevenly.
SLACK_MS = 40
WINDOW_MS, FIND_MS = 128, 256  # that the share, and the delay, are read from
N_TAPS = 32  # 4 ms: the straight way, and the nearest walls
N_BLOCKS = 8  # of a window: so small that no BLAS wakes its threads for them
# So much of a sound's energy is the agent's voice, delayed and filtered: where the delay is known
# already, and where it was found in this very sound. Of callers' over the agent 5 % lie above 0.13
# at the true delay, none above 0.2 (LOG.md, 2026-11-28, "an echo by what was played").
KNOWN_SHARE, FOUND_SHARE = 0.25, 0.4
# The height of the correlation's peak from which a new delay is believed, and within NEAR_MS of the
# last one: a client begins each answer a little sooner or later. It takes 1 ms to look, so not
# every slice does.
FOUND, FOUND_NEAR, NEAR_MS, FIND_EVERY = 0.3, 0.22, 60.0, 3
SOUND_DB = 5.0  # so far above the room a sound is worth a look; a caller's lies higher
# An echo dies away in the room, 60 dB in a second at most: what lies below that is its tail.
TAIL_DB_S = 60.0
ROOM_SLICES = 150  # 3 s in slices of 20 ms: the softest tenth is the room


class EchoGuard:
    """`play` what is sent to the caller, `push` what comes from there."""

    def __init__(self) -> None:
        self.delay_ms: float | None = None  # of the latest echo; None: none was heard
        self._n_past = (LONGEST_DELAY_MS + FIND_MS) * MS
        self._n_kept = self._n_past + LONGEST_AHEAD_MS * MS
        # Twice as long, so that it need not be moved at each slice: what counts begins at `_first`.
        self._memory: Wave = np.zeros(2 * self._n_kept, np.float32)
        self._first = 0
        self._n_ahead = -self._n_past  # where the latest of it ends, from now
        self._heard: Wave = np.zeros(FIND_MS * MS, np.float32)
        self._to_heard = Resampler(RECOGNIZER_HZ, ECHO_HZ)
        self._to_played = Resampler(RECOGNIZER_HZ, ECHO_HZ)
        self._levels: deque[float] = deque(maxlen=ROOM_SLICES)
        self._n_unfound = 0  # slices in a row for which no delay was looked for
        self._echo_db = 0.0  # of the latest echo, as it dies away
        self._noise = np.random.default_rng(0)

    @property
    def _played(self) -> Wave:
        """The sound that was sent, from the longest delay ago to what is still to play."""
        return self._memory[self._first : self._first + self._n_kept]

    def play(self, samples: Samples, rate_hz: int) -> None:
        """The agent's next sound, int16 [n], goes out now: it plays behind what the client has."""
        if self._to_played.in_hz != rate_hz:
            self._to_played = Resampler(rate_hz, ECHO_HZ)
        if self._n_ahead < -SLACK_MS * MS:
            self._to_played.reset()
            self._n_ahead = 0
        start = self._n_past + self._n_ahead
        sound = self._to_played.push(samples)[: self._n_kept - start]
        self._played[start : start + len(sound)] = sound
        self._n_ahead += len(sound)

    def push(self, samples: Samples) -> Samples:
        """The caller's next sound, int16 [n] at 16 kHz: as it is, or where it is an echo the room's
        noise in its place.
        """
        heard = self._to_heard.push(samples).astype(np.float32)
        self._advance(heard)
        level_db = _level_db(heard)
        self._levels.append(level_db)
        self._echo_db -= TAIL_DB_S * len(samples) / RECOGNIZER_HZ
        if self._n_ahead <= -self._n_past:  # nothing that could come back
            return samples
        room_db = sorted(self._levels)[len(self._levels) // 10]
        if level_db < room_db + SOUND_DB:
            return samples
        if self._is_echo():
            self._echo_db = max(self._echo_db, level_db)
        elif level_db > self._echo_db:
            return samples
        room: Samples = np.rint(
            10.0 ** (room_db / 20.0) * self._noise.standard_normal(len(samples))
        ).astype(np.int16)
        return room

    def _advance(self, heard: Wave) -> None:
        n = min(len(heard), len(self._heard))
        self._heard = np.concatenate((self._heard[n:], heard[len(heard) - n :]))
        if self._n_ahead <= -self._n_past:
            return
        if self._first + n + self._n_kept > len(self._memory):
            self._memory[: self._n_kept] = self._played
            self._memory[self._n_kept :] = 0.0
            self._first = 0
        self._first += n
        self._n_ahead = max(self._n_ahead - n, -self._n_past)

    def _is_echo(self) -> bool:
        if self.delay_ms is not None and self.share(self.delay_ms) >= KNOWN_SHARE:
            return True
        self._n_unfound = (self._n_unfound + 1) % FIND_EVERY
        if self._n_unfound:
            return False
        height, delay_ms = self._find()
        is_near = self.delay_ms is not None and abs(delay_ms - self.delay_ms) <= NEAR_MS
        if height < (FOUND_NEAR if is_near else FOUND) or self.share(delay_ms) < FOUND_SHARE:
            return False
        self.delay_ms = delay_ms
        return True

    def share(self, delay_ms: float) -> float:
        """Return the share of the latest sound's energy that a short filter makes of what was
        played then: 0 to 1.

        delay_ms: at most LONGEST_DELAY_MS.
        """
        n = WINDOW_MS * MS
        end = self._n_past - round(delay_ms * MS) + N_TAPS // 4
        rows = np.lib.stride_tricks.sliding_window_view(
            self._played[end - n - N_TAPS + 1 : end], N_TAPS
        ).reshape(N_BLOCKS, -1, N_TAPS)
        heard = self._heard[-n:].reshape(N_BLOCKS, -1, 1)
        turned = rows.transpose(0, 2, 1)
        power = np.matmul(turned, rows).sum(axis=0)
        # One part in a hundred, and a floor: of a tone many filters make the same.
        power[np.diag_indices(N_TAPS)] += 0.01 * np.trace(power) / N_TAPS + 1.0
        taps = np.linalg.solve(power, np.matmul(turned, heard).sum(axis=0))
        left = heard - np.matmul(rows, taps)
        return float(1.0 - np.sum(left * left) / max(np.sum(heard * heard), 1.0))

    def _find(self) -> tuple[float, float]:
        """How high the correlation with what was played is at the best delay, and that delay."""
        n, n_delays = len(self._heard), LONGEST_DELAY_MS * MS
        n_played = self._n_past
        size = 1 << (n_played + n - 1).bit_length()
        of_played = _whitened(self._played[:n_played], size)
        of_heard = _whitened(self._heard, size)
        crossed = np.fft.irfft(of_heard.conj() * of_played, size)[: n_delays + 1]
        sums = np.zeros(n_played + 1)
        np.cumsum(np.fft.irfft(of_played, size)[:n_played] ** 2, out=sums[1:])
        behind = sums[n : n + n_delays + 1] - sums[: n_delays + 1]
        behind = np.maximum(behind, 1e-3 * float(behind.max()) + 1e-9)
        energy = float(np.sum(np.fft.irfft(of_heard, size)[:n] ** 2))
        heights = np.abs(crossed) / np.sqrt(behind * energy + 1e-9)
        best = int(np.argmax(heights))
        return float(heights[best]), (n_delays - best) / MS


def _whitened(wave: Wave, size: int) -> NDArray[np.complex128]:
    """Return its spectrum, nearly flat: voices are not, and would fit at many delays."""
    spectrum = np.fft.rfft(wave, size)
    height = np.abs(spectrum)
    flat: NDArray[np.complex128] = spectrum / (height + 1e-3 * height.max() + 1e-9) ** 0.8
    return flat


def _level_db(wave: Wave) -> float:
    """Above one unit of int16."""
    return 10.0 * float(np.log10(np.sum(wave * wave) / max(len(wave), 1) + 1.0))
