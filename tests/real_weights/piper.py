"""A man's voice for tests: Piper's en_US-joe in onnxruntime, its phonemes by espeak-ng.

It is no voice of the product: its weights were finetuned from recordings that are, as far as is
known, for research. Without noise in its durations and sound, so the same text gives the same
samples.
"""

from __future__ import annotations

import ctypes
import json
import re
from pathlib import Path

import numpy as np
import onnxruntime

from audio.espeak_library import load_espeak
from audio.frames import RECOGNIZER_HZ, Samples
from audio.normalize import normalize
from audio.resample import Resampler

MODEL = "en_US-joe-medium.onnx"
UTF8, IPA = 1, 2  # espeakCHARS_UTF8; phoneme mode of espeak_TextToPhonemes
CLAUSE = re.compile(r"[^,.;:?!]+[,.;:?!]*")


class PiperJoe:
    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / f"{MODEL}.json").read_text("utf-8"))
        self._ids: dict[str, list[int]] = config["phoneme_id_map"]
        self._voice: str = config["espeak"]["voice"]
        self._rate_hz: int = config["audio"]["sample_rate"]
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(folder / MODEL), options)

    def speak(self, text: str) -> Samples:
        """text at 16 kHz."""
        phonemes = "".join(self._clause(match[0]) for match in CLAUSE.finditer(_spoken(text)))
        ids = [*self._ids["^"], *self._ids["_"]]
        for phoneme in phonemes.strip():
            ids += [*self._ids.get(phoneme, ()), *self._ids["_"]]
        ids += self._ids["$"]
        feeds = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([0.0, 1.0, 0.0], np.float32),  # noise, length, noise of durations
        }
        [wave] = self._session.run(None, feeds)
        whole = np.clip(wave.reshape(-1) * 32767.0, -32768, 32767).astype(np.int16)
        resampler = Resampler(self._rate_hz, RECOGNIZER_HZ)
        return np.concatenate((resampler.push(whole), resampler.flush()))

    def _clause(self, clause: str) -> str:
        """A clause's phonemes and its mark, which espeak-ng leaves out."""
        espeak = load_espeak()
        espeak._settings = None  # its own synthesis must set its voice anew
        espeak._set_voice(self._voice)
        spelled = espeak._library.espeak_TextToPhonemes
        spelled.restype = ctypes.c_char_p
        text = ctypes.c_char_p(clause.encode())
        found = []
        while text.value:
            read = spelled(ctypes.byref(text), UTF8, IPA)
            found.append(read.decode())
        mark = clause.strip()[-1:]
        return " ".join(found) + (f"{mark} " if mark in ",.;:?!" else " ")


def _spoken(text: str) -> str:
    return normalize(text).text
