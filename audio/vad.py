"""Voice activity: the probability that each 32 ms window holds speech (Silero VAD v6).

The recurrent state and the 64 samples of context are carried from window to window: a stream.

Source: Silero VAD v6, MIT, https://github.com/snakers4/silero-vad; its file lies in
``audio/embedded/voice_activity``.
"""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import MissingExtra
from .frames import VAD_WINDOW, Samples

MODEL_FILE = Path(__file__).parent / "embedded" / "voice_activity" / "silero_vad_v6.onnx"
# Before a sound, the second detector's beginning: with 3 it tells of the interruptions of
# `benchmarks.backchannels` what one does that never stops (LOG.md, 2026-11-22, "the first 100 ms").
LEAD_WINDOWS = 3
_CONTEXT = 64  # samples of the previous window that the graph's first convolution reads
_STATE_SHAPE = (1, 1, 128)  # of h and of c


@dataclass(frozen=True, slots=True)
class SpeechProbability:
    """end_position: samples fed up to the end of the window (16 kHz); probability: 0..1.

    is_between: of a window that lies half in one and half in the next of those that count.
    """

    end_position: int
    probability: float
    is_between: bool = False


class Vad:
    """The detector of one stream of int16 samples at 16 kHz; about 0.1 ms a window.

    After `look_between` a second detector, half a window later, tells of the windows between too:
    where a sound begins in a window is chance, and it may take the first one longer to notice.

    Raises: MissingExtra if onnxruntime is not installed.
    """

    def __init__(self) -> None:
        self._session = _load_session()
        self.reset()

    def reset(self) -> None:
        """Start a new stream at position 0."""
        self._window: NDArray[np.float32] = np.zeros((1, _CONTEXT + VAD_WINDOW), np.float32)
        self._found: NDArray[np.float32] = np.zeros(1, np.float32)
        # Two states, each in turn what the next one is made of. The session knows where all of it
        # lies: to be given arrays anew costs it a ninth of a window's time.
        states = np.zeros((2, 2, *_STATE_SHAPE), np.float32)
        self._states: NDArray[np.float32] = states
        self._passes = self._bind(states[0], states[1]), self._bind(states[1], states[0])
        self._n_windows = 0
        self._filled = 0  # samples of the current window that are there
        self._position = 0
        self._latest = np.zeros(0, np.int16)  # what a second detector would begin with
        self._between: Vad | None = None
        self._between_at = 0  # where that began

    def look_between(self, does: bool) -> None:
        """Look there from now on, beginning with the latest LEAD_WINDOWS; or no longer."""
        if not does:
            self._between = None
        elif self._between is None:
            fed = self._position + self._filled
            begins = max(0, fed // VAD_WINDOW - LEAD_WINDOWS) * VAD_WINDOW + VAD_WINDOW // 2
            if begins > fed:
                return  # a stream of a few samples
            self._between, self._between_at = Vad(), begins
            self._between.feed(self._latest[max(0, len(self._latest) - (fed - begins)) :])

    def feed(self, samples: Samples) -> list[SpeechProbability]:
        """One probability for each window that samples [n] complete, in the order of their ends."""
        found = self._advance(samples)
        self._latest = np.concatenate((self._latest, samples))[-(LEAD_WINDOWS + 1) * VAD_WINDOW :]
        if self._between is None:
            return found
        found += [
            SpeechProbability(w.end_position + self._between_at, w.probability, is_between=True)
            for w in self._between.feed(samples)
        ]
        return sorted(found, key=lambda window: window.end_position)

    def _advance(self, samples: Samples) -> list[SpeechProbability]:
        probabilities = []
        taken = 0
        while taken < len(samples):
            count = min(VAD_WINDOW - self._filled, len(samples) - taken)
            start = _CONTEXT + self._filled
            self._window[0, start : start + count] = samples[taken : taken + count] / 32768.0
            self._filled += count
            taken += count
            if self._filled == VAD_WINDOW:
                probabilities.append(self._finish_window())
        return probabilities

    def _bind(self, given: NDArray[np.float32], left: NDArray[np.float32]) -> Any:
        """A pass of the network from one state to the other: arrays of h and c."""
        binding = self._session.io_binding()
        for name, array in (("input", self._window), ("h", given[0]), ("c", given[1])):
            binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        for name, array in (("speech_probs", self._found), ("hn", left[0]), ("cn", left[1])):
            binding.bind_output(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding

    def _finish_window(self) -> SpeechProbability:
        self._session.run_with_iobinding(self._passes[self._n_windows % 2])
        self._n_windows += 1
        self._window[0, :_CONTEXT] = self._window[0, -_CONTEXT:]
        self._filled = 0
        self._position += VAD_WINDOW
        return SpeechProbability(self._position, float(self._found[0]))


@lru_cache(maxsize=1)
def _load_session() -> Any:
    """The onnxruntime session all streams share; its run() is stateless and thread-safe."""
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", "voice activity detection") from None
    options = onnxruntime.SessionOptions()
    # One window is 0.1 ms of work: threads would cost more than they give.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        str(MODEL_FILE), sess_options=options, providers=["CPUExecutionProvider"]
    )
