"""Whisper as a streaming recognizer: any checkpoint, on CPU or CUDA.

The streaming is `window_recognizer`'s, the decoding CTranslate2's; here they meet.
"""

import time
from collections.abc import Callable
from pathlib import Path

from .whisper_folder import open_decoder
from .window_recognizer import WindowRecognizer

# How often a caller's window is decoded: a GPU does 10 s in tens of ms, a CPU in hundreds.
UPDATE_MS = {"cuda": 250.0, "cpu": 500.0}


class WhisperRecognizer(WindowRecognizer):
    """A CTranslate2 folder of Whisper, or a Hugging Face one (converted once).

    folder: the model's folder on disk. device: "cpu", "cuda:1", "auto". compute_type: as
    CTranslate2 names it, None for int8 on a CPU and int8_float16 on CUDA. update_ms: how much new
    audio makes a partial due, None for the device's own. cache_dir: where converted checkpoints are
    kept.

    Raises: AudioError if the folder or the device does not serve; the message has the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        compute_type: str | None = None,
        update_ms: float | None = None,
        n_threads: int = 0,
        cache_dir: str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        decoder, device = open_decoder(Path(folder), device, compute_type, n_threads, cache_dir)
        super().__init__(
            decoder, update_ms=update_ms or UPDATE_MS[device.partition(":")[0]], clock=clock
        )
