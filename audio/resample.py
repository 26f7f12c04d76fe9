"""Streaming sample-rate conversion with a small, known delay.

A windowed-sinc filter evaluated at each output instant (polyphase). The output is aligned in
time with the input: sample k of one stands at k / rate, as does sample k of the other. What the
filter must still see of the future is withheld until it comes, or until `flush`.

Source: J. O. Smith, "Digital Audio Resampling" (CCRMA); Kaiser window from J. F. Kaiser 1974.
"""

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

from .errors import AudioError
from .frames import Samples

# Zero crossings of the sinc on each side, counted at the lower rate. The delay is therefore
# 16 / lower rate: 2 ms when one side is 8 kHz, 1 ms at 16 kHz (24 -> 16 kHz too), 0.67 ms at 24.
HALF_WIDTH = 16
# 32 periods of the lower rate and 60 dB give a transition of (60 - 8) / (2.285 * 32 * 2 pi)
# = 0.113 of that rate (Kaiser's formula); the -6 dB point at 0.47 of it puts the pass band's edge
# at 0.41 and the stop band's at 0.53: what folds over lies above the telephone band.
CUTOFF = 0.47
KAISER_BETA = 5.65  # 60 dB: 0.1102 * (60 - 8.7)
# Coefficients are whole multiples of 2**-16, so every sum below is exact in float64 (15 + 16 bits
# and a few for the terms): the output cannot depend on how the input was cut into chunks.
_ONE = 1 << 16

MIN_HZ, MAX_HZ = 4_000, 192_000
BLOCK = 8192  # outputs at once: their windows fill some 3 MB, however much is pushed
MAX_PHASES = 640  # 22.05 -> 16 kHz needs 320; more would mean rates that are not in use


class Resampler:
    """Converts one stream of int16 samples from in_hz to out_hz.

    Pushed in any chunks, the outputs concatenate to the same ceil(n * out_hz / in_hz) samples.

    Raises: AudioError if a rate is outside MIN_HZ..MAX_HZ, or their ratio is no simple one.
    """

    def __init__(self, in_hz: int, out_hz: int) -> None:
        for rate_hz in (in_hz, out_hz):
            if not MIN_HZ <= rate_hz <= MAX_HZ:
                raise AudioError(
                    f"expected a sample rate of {MIN_HZ} to {MAX_HZ} Hz, found {rate_hz}"
                )
        divisor = gcd(in_hz, out_hz)
        self.in_hz, self.out_hz = in_hz, out_hz
        self._up, self._down = out_hz // divisor, in_hz // divisor
        if self._up > MAX_PHASES:
            raise AudioError(
                f"expected rates in a ratio of small whole numbers, found {in_hz} and {out_hz} Hz"
            )
        self._half = -(-HALF_WIDTH * in_hz // min(in_hz, out_hz))  # input samples on each side
        self._taps = _taps_of(self._up, self._down, min(in_hz, out_hz) / in_hz, self._half)
        self.reset()

    @property
    def delay_ms(self) -> float:
        """How much of the input's end is withheld until more comes: at most this."""
        return 0.0 if self.in_hz == self.out_hz else 1000.0 * self._half / self.in_hz

    def reset(self) -> None:
        """Forget the stream: the next push starts a new one."""
        # The filter sees zeros before the first sample.
        self._pending: NDArray[np.float64] = np.zeros(self._half - 1)
        self._first = 1 - self._half  # input position of _pending[0]
        self._n_in = 0
        self._n_out = 0

    def push(self, samples: Samples) -> Samples:
        """The outputs that samples [n] int16 complete, int16 [m]."""
        if self.in_hz == self.out_hz:
            return samples
        self._n_in += len(samples)
        self._pending = np.concatenate((self._pending, samples))
        # Output k reads inputs floor(k * down / up) - half + 1 .. + half.
        last_base = self._n_in - self._half - 1
        return self._produce((last_base + 1) * self._up // self._down + 1 if last_base >= 0 else 0)

    def flush(self) -> Samples:
        """The withheld end of the stream; afterwards a new stream starts."""
        if self.in_hz == self.out_hz:
            return np.zeros(0, np.int16)
        self._pending = np.concatenate((self._pending, np.zeros(self._half + 1)))
        rest = self._produce(-(-self._n_in * self._up // self._down))
        self.reset()
        return rest

    def _produce(self, n_total: int) -> Samples:
        """Outputs from where we stand up to at most n_total that the pending input covers."""
        last_base = self._first + len(self._pending) - self._half - 1
        n_total = min(n_total, ((last_base + 1) * self._up - 1) // self._down + 1)
        blocks = []
        while self._n_out < n_total:
            blocks.append(self._produce_block(min(n_total, self._n_out + BLOCK)))
        if len(blocks) == 1:  # as of every frame of a call
            return blocks[0]
        return np.concatenate(blocks or [np.zeros(0, np.int16)])

    def _produce_block(self, n_total: int) -> Samples:
        """Outputs up to n_total, by whole groups: `up` of them begin with `down` inputs each."""
        group = self._n_out // self._up
        n_groups = -(-n_total // self._up) - group
        n_taps = len(self._taps)
        n_read = (n_groups - 1) * self._down + n_taps
        inputs = self._pending[:n_read]
        if n_read > len(inputs):
            # The last group may reach beyond what has come; what it would say there is not kept.
            inputs = np.concatenate((inputs, np.zeros(n_read - len(inputs))))
        # Each group's inputs, without a copy. As numpy's sliding_window_view, which takes longer
        # to make one than the product takes; the constructor checks that they lie in `inputs`.
        step = inputs.itemsize
        groups: NDArray[np.float64] = np.ndarray(
            (n_groups, n_taps), np.float64, inputs, 0, (self._down * step, step)
        )
        sums = groups @ self._taps
        outputs = sums.ravel()[self._n_out - group * self._up : n_total - group * self._up]
        self._n_out = n_total
        first = self._n_out // self._up * self._down - self._half + 1
        self._pending, self._first = self._pending[first - self._first :], first
        values = outputs / _ONE
        np.rint(values, out=values)
        np.maximum(values, -32768, out=values)  # np.clip takes as long as the product
        np.minimum(values, 32767, out=values)
        return values.astype(np.int16)


@lru_cache(maxsize=32)  # pairs of rates; every call has the same few
def _taps_of(up: int, down: int, bandwidth: float, half: int) -> NDArray[np.float64]:
    """Return what a group's inputs weigh in each of its `up` outputs, [inputs, up]: not to be
    written to.

    Output p of a group stands p * down / up inputs behind the first. The rest: `_filter_bank`.
    """
    bank = _filter_bank(up, bandwidth, half)
    bases, phases = np.divmod(np.arange(up) * down, up)
    taps = np.zeros((bases[-1] + bank.shape[1], up))
    for output, (base, phase) in enumerate(zip(bases, phases, strict=True)):
        taps[base : base + bank.shape[1], output] = bank[phase]
    taps.flags.writeable = False
    return taps


def _filter_bank(up: int, bandwidth: float, half: int) -> NDArray[np.float64]:
    """Coefficients [up, 2 * half]; row p weighs the inputs around a point p / up past a sample.

    bandwidth: lower rate over input rate.
    """
    offsets = np.arange(2 * half) - (half - 1) - np.arange(up)[:, None] / up
    window = np.i0(KAISER_BETA * np.sqrt(np.clip(1.0 - (offsets / half) ** 2, 0.0, 1.0)))
    taps = np.sinc(2.0 * CUTOFF * bandwidth * offsets) * window
    taps /= taps.sum(axis=1, keepdims=True)
    whole = np.rint(taps * _ONE)
    # Rounding must not change the level of a constant: the largest tap takes up the difference.
    whole[np.arange(up), whole.argmax(axis=1)] += _ONE - whole.sum(axis=1)
    return whole
