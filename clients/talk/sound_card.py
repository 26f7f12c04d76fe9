"""The default microphone and loudspeaker, at 24 kHz, with the echo between them taken out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from clients.connection import RATE_HZ
from clients.errors import DeviceMissing
from clients.recording import Samples
from clients.talk.echo import EchoCanceller
from clients.talk.speaker import Speaker

BLOCK_MS = 20
N_BLOCK = RATE_HZ * BLOCK_MS // 1000


@contextmanager
def sound_card(
    microphone: asyncio.Queue[Samples], speaker: Speaker, *, cancels_echo: bool
) -> Iterator[None]:
    """Open the devices; blocks of the microphone arrive on the event loop, those that find the
    queue full are dropped.

    Raises:
        DeviceMissing: no sounddevice, no PortAudio, no microphone, or it cannot do 24 kHz.
    """
    sounddevice = _sounddevice()
    loop = asyncio.get_running_loop()
    echo: EchoCanceller | None = None

    def offer(samples: Samples) -> None:
        if not microphone.full():
            microphone.put_nowait(samples)

    def recorded(data: Any, *_: object) -> None:
        samples = np.frombuffer(data, dtype=np.int16).copy()
        cleaned = echo.clean(samples) if echo is not None else samples
        loop.call_soon_threadsafe(offer, cleaned)

    def wanted(data: Any, n_frames: int, *_: object) -> None:
        samples = speaker.take(n_frames)
        if echo is not None:
            echo.play(samples)
        data[:] = samples.tobytes()

    shape = {"samplerate": RATE_HZ, "channels": 1, "dtype": "int16", "blocksize": N_BLOCK}
    with ExitStack() as streams:
        try:
            heard = sounddevice.RawInputStream(callback=recorded, **shape)
            played = sounddevice.RawOutputStream(callback=wanted, **shape)
            if cancels_echo:
                echo = EchoCanceller(1000.0 * (heard.latency + played.latency))
            streams.enter_context(heard)
            streams.enter_context(played)
        except (sounddevice.PortAudioError, ValueError) as error:
            raise DeviceMissing(
                f"expected a microphone and a loudspeaker, found none that opens: {error}; "
                "use --wav"
            ) from error
        yield


def _sounddevice() -> ModuleType:
    try:
        import sounddevice
    except ImportError as error:
        raise DeviceMissing(
            "expected sounddevice for the microphone, found none: pip install 'voiceloop[talk]', "
            "or use --wav"
        ) from error
    except OSError as error:  # the package is there, the library under it is not
        raise DeviceMissing(
            "expected the PortAudio library, found none: apt-get install libportaudio2, "
            "or use --wav"
        ) from error
    return sounddevice
