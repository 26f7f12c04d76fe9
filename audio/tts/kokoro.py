"""Kokoro-82M in onnxruntime: 28 English voices, clause by clause (Apache-2.0 weights).

Its phonemes are those that hibari was distilled for, so hibari's wheel reads the words (General
American, British voices too) and no GPL phonemizer is needed. Clauses, pauses and word times are
hibari's as well: the graph's own durations, where it has them under the name we know.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError
from .clause_audio import KEPT_MB
from .hibari import HibariVoice
from .hibari_model import PhonemeModel, as_output, session_of
from .reply import Waveform

STYLE = 256  # of one row of a voice; the row is that of so many phonemes
DURATIONS = "/encoder/CumSum_output_0"  # int64 [n_phonemes]: frames up to the end of each phoneme
IDS = ("tokens", "input_ids")  # as kokoro-onnx and the publisher's own export call them
ENGLISH = "voices/[ab][fm]_*.bin"  # American and British, of women and men
FIRST = "af_heart"
FRAME = 600  # samples


class KokoroModel(PhonemeModel):
    """A folder of *.onnx (or onnx/*.onnx) and voices/*.bin: 8-bit weights before others.

    Raises: AudioError naming what the folder lacks; as `PhonemeModel`.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        graphs = sorted((*folder.glob("*.onnx"), *folder.glob("onnx/*.onnx")), key=_precision)
        english = sorted(path.stem for path in folder.glob(ENGLISH))
        if not graphs or not english:
            lacks = ENGLISH if graphs else "*.onnx"
            raise AudioError(f"expected {lacks} in {str(folder)!r}, found none")
        super().__init__()
        self.voices = tuple(sorted(english, key=lambda name: (name != FIRST, name)))
        self._styles = {name: _style(folder / "voices" / f"{name}.bin") for name in english}
        graph = graphs[0].read_bytes()
        try:
            try:
                self._session = session_of(graph + as_output(DURATIONS), threads)
            except Exception:  # another export: its durations have another name
                self._session = session_of(graph, threads)
            self._input = next(one.name for one in self._session.get_inputs() if one.name in IDS)
        except Exception as error:  # onnxruntime's errors have no common class of their own
            raise AudioError(f"expected Kokoro-82M in {graphs[0].name}, found {error}") from error

    def _run(self, ids: list[int], speed: float, voice: str) -> tuple[Waveform, Any]:
        styles = self._styles[voice]
        given = {
            self._input: np.array([ids], np.int64),
            "style": styles[min(len(ids) - 2, len(styles)) - 1][None],
            "speed": np.array([speed], np.float32),
        }
        wave, *ends = self._session.run(None, given)
        wave = np.asarray(wave, np.float32).reshape(-1)
        if ends:
            return wave, ends[0]
        # Each phoneme as long as the others: far off within a clause, right at its edges.
        return wave, np.linspace(0, len(wave) / FRAME, len(ids) + 1)[1:]


class KokoroVoice(HibariVoice):
    """`VoiceModel` over such a folder. Raises: as `KokoroModel`."""

    gain = 1.0
    most_phonemes = 80  # five seconds of speech: it takes some ten times hibari's computing

    def __init__(
        self, folder: str | Path, *, threads: int = 1, kept_mb: int = KEPT_MB, device: str = "cpu"
    ) -> None:
        if device not in ("cpu", "auto"):
            raise AudioError(f"expected device cpu or auto for Kokoro, found {device!r}")
        model = KokoroModel(Path(folder), threads)
        self._begin_with(model, model.voices, kept_mb)


def _precision(path: Path) -> tuple[int, str]:
    """Eight bits first, then what is no rounding of another kind; by name where both are."""
    name = path.stem.lower()
    if "int8" in name or name == "model_quantized":
        return 0, name
    return (1 if name == "model" else 2), name


def _style(path: Path) -> NDArray[np.float32]:
    """float32 [n, 256]. Raises: AudioError."""
    values = np.fromfile(path, np.float32)
    if not len(values) or len(values) % STYLE or not np.isfinite(values).all():
        raise AudioError(f"expected rows of {STYLE} float32 in {path.name}, found another file")
    return values.reshape(-1, STYLE)
