"""Smart Turn v3.2 (Daily, BSD-2-Clause), a peer: is this pause the end of a turn?

Runs the model file of pipecat's wheel with the feature code of the same wheel. The wheel is fetched
into the cache folder by pip, unpacked there, and never installed.

Source: pipecat 1.14, audio/turn/smart_turn/local_smart_turn_v3.py: the last 8 s of the turn, padded
with zeros at the front, as Whisper log-mel features; asked after 200 ms of silence.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio.frames import RECOGNIZER_HZ
from clients.errors import ClientError
from voiceloop.listening.recipes.disk_cache import cache_folder, cached, digest
from voiceloop.listening.recipes.endpointing_set import MS, CallerTurn
from voiceloop.listening.recipes.heard_turn import Pause

REQUIREMENT = "pipecat-ai==1.14.0"
FOLDER = "pipecat/audio/turn/smart_turn"
FEATURES = f"{FOLDER}/_whisper_features.py"
MODEL = f"{FOLDER}/data/smart-turn-v3.2-cpu.onnx"
ASKED_AFTER_MS = 200.0  # pipecat's default: its voice detector's stop_secs
INFERENCE_MS = 12.0  # of its own authors' figure on a CPU; charged to the moment of the answer
PRE_SPEECH_MS = 500.0  # pipecat keeps so much before the onset
WINDOW_S = 8


class PeerMissing(ClientError):
    """The peer's wheel is not in the cache folder and cannot be fetched."""


class SmartTurn:
    """Raises: PeerMissing where the wheel cannot be fetched."""

    def __init__(self) -> None:
        self._folder = _unpacked()
        self._session: Any = None
        self._features: Any = None

    def p_over(self, turn: CallerTurn, pause: Pause) -> float | None:
        """Its answer in this pause; None where speech resumes before it is asked."""
        at_ms = max(pause.detected_ms, pause.since_ms + ASKED_AFTER_MS)
        if pause.resumed_ms is not None and at_ms >= pause.resumed_ms:
            return None
        onset_ms = turn.words[0].start_ms if turn.words else 0.0
        first = int(max(0.0, onset_ms - PRE_SPEECH_MS) * MS)
        heard = turn.samples[first : int(at_ms * MS)]
        return float(cached("smart_turn", digest(heard.tobytes()), lambda: self._ask(heard)))

    def _ask(self, samples: NDArray[np.int16]) -> float:
        if self._session is None:
            self._load()
        n_window = WINDOW_S * RECOGNIZER_HZ
        audio = samples[-n_window:].astype(np.float32) / 32768.0
        audio = np.pad(audio, (n_window - len(audio), 0))
        features = self._features(audio, do_normalize=True)[None]
        return float(self._session.run(None, {"input_features": features})[0].ravel()[0])

    def _load(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        model = str(self._folder / MODEL)
        self._session = onnxruntime.InferenceSession(model, sess_options=options)
        spec = importlib.util.spec_from_file_location("whisper_features", self._folder / FEATURES)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._features = module.compute_whisper_log_mel_features


def _unpacked() -> Path:
    folder = cache_folder() / "pipecat"
    if not (folder / MODEL).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "-q", "-d", str(folder)]
        try:
            subprocess.run([*command, REQUIREMENT], check=True)
        except subprocess.CalledProcessError as error:
            raise PeerMissing(
                f"expected pip to fetch {REQUIREMENT} into {folder}, found exit code "
                f"{error.returncode} (--no-peer does without)"
            ) from None
        with zipfile.ZipFile(next(folder.glob("pipecat_ai-*.whl"))) as wheel:
            wheel.extractall(folder, [FEATURES, MODEL])
    return folder
