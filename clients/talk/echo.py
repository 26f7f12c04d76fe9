"""Echo cancellation for loudspeakers: what the agent says is taken out of the microphone.

Without it the agent hears itself and interrupts itself. WebRTC's canceller learns the way from the
loudspeaker to the microphone while the agent speaks; the caller's own voice passes. The library is
an optional one: `EchoCanceller` raises where it is not installed.

Source: AEC3 of WebRTC's audio processing (BSD-3-Clause), through the package livekit.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

import numpy as np

from clients.connection import RATE_HZ
from clients.errors import DeviceMissing
from clients.recording import Samples

N_FRAME = RATE_HZ // 100  # WebRTC's: 10 ms
MAX_DELAY_MS = 500  # what the canceller can look back


def is_available() -> bool:
    return find_spec("livekit") is not None


class EchoCanceller:
    """One loudspeaker and one microphone, mono int16 at 24 kHz, in blocks of whole 10 ms.

    About 0.2 ms of CPU for 10 ms of both. `play` and `clean` may be called by two threads of a
    sound card; a lock keeps them apart.
    """

    def __init__(self, delay_ms: float) -> None:
        """delay_ms: from `play` to the same sound in `clean`, as far as the sound card tells it;
        the canceller finds it by itself too, only later.

        Raises:
            DeviceMissing: livekit is not installed.
        """
        try:
            from livekit import rtc
        except ImportError as error:
            raise DeviceMissing(
                "expected livekit for echo cancellation, found none: pip install 'voiceloop[talk]'"
            ) from error
        self._frame = rtc.AudioFrame
        self._apm = rtc.AudioProcessingModule(echo_cancellation=True, high_pass_filter=True)
        self._apm.set_stream_delay_ms(round(min(max(delay_ms, 0.0), MAX_DELAY_MS)))
        self._lock = threading.Lock()

    def play(self, samples: Samples) -> None:
        """Take in what the loudspeaker plays next."""
        with self._lock:
            for start in range(0, len(samples) - N_FRAME + 1, N_FRAME):
                self._apm.process_reverse_stream(self._framed(samples, start))

    def clean(self, samples: Samples) -> Samples:
        """The microphone's samples [n] without the echo, int16 [n]."""
        cleaned = samples.copy()
        with self._lock:
            for start in range(0, len(samples) - N_FRAME + 1, N_FRAME):
                frame = self._framed(samples, start)
                self._apm.process_stream(frame)
                cleaned[start : start + N_FRAME] = np.frombuffer(frame.data, np.int16)
        return cleaned

    def _framed(self, samples: Samples, start: int) -> Any:
        return self._frame(samples[start : start + N_FRAME].tobytes(), RATE_HZ, 1, N_FRAME)
