"""What the recognizer's end-of-turn head makes of the sound before a pause, offline.

Owns the questions put to the head: the window that the recognizer holds when the pause is noticed,
read by the one that has not heard the speaker. What its encoder made of a window is kept on disk,
so that other heads answer quickly.
"""

from __future__ import annotations

import numpy as np

from audio.asr.moonshine.decoder import EDGE
from audio.asr.moonshine.onnx_network import SHA256, OnnxNetwork, checked_folder
from audio.end_of_voice import EndOfVoice, Rows
from audio.frames import RECOGNIZER_HZ
from voiceloop.listening.onset import PRE_ROLL_MS
from voiceloop.listening.recipes.disk_cache import cache_folder, digest
from voiceloop.listening.recipes.endpointing_set import MS, CallerTurn
from voiceloop.listening.recipes.heard_turn import WINDOW, WINDOW_MS, Pause

# Of longer turns the last part alone, for the time it takes; in a call the whole window is read.
KEPT_ROWS = 64  # of the encoder, more than the head reads
MOST_CONTEXT = 3 * RECOGNIZER_HZ


class VoiceReading:
    """Asks the head that ships. Raises: AudioError where it or the recognizer is absent."""

    def __init__(self) -> None:
        self._head = EndOfVoice()
        self._network: OnnxNetwork | None = None

    def p_voice(self, turn: CallerTurn, pause: Pause) -> float:
        """Log-odds that the caller has finished, at this pause's first low window."""
        onset_ms = max(0.0, turn.words[0].start_ms if turn.words else 500.0)
        first = int(max(0.0, onset_ms - PRE_ROLL_MS) / WINDOW_MS) * WINDOW
        heard = turn.samples[first : int(pause.detected_ms * MS)]
        rows = self._rows(heard[-MOST_CONTEXT:])
        return self._head.unheard_log_odds(rows, turn.speaker)

    def _rows(self, samples: np.ndarray[tuple[int], np.dtype[np.int16]]) -> Rows:
        key = digest("1", SHA256["encoder_model.ort"], samples.tobytes())
        path = cache_folder() / "encoder_rows" / key[:2] / f"{key}.npy"
        if not path.is_file():
            if self._network is None:
                self._network = OnnxNetwork(checked_folder())
            wave = np.pad(samples.astype(np.float32) / 32768.0, EDGE)
            rows = self._network.rows(self._network.encode(wave))[-KEPT_ROWS:]
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, rows.astype(np.float16))
        return np.asarray(np.load(path), np.float32)
