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
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, MissingExtra
from ..frames import RECOGNIZER_HZ, Samples
from ..stream import RecognizerOptions
from .moonshine_vocabulary import END, START, MoonshineVocabulary, PhraseHints
from .speech_level import VoicedLevel
from .window_decoder import DecodedWindow, DecodeRequest, max_new_tokens, proportional_spans
from .window_recognizer import WindowRecognizer

PACKAGE, FOLDER_IN_PACKAGE = "moonshine_voice", Path("assets", "tiny-en")
REQUIREMENT = "moonshine-voice==0.1.0"
SHA256 = {
    "encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    "decoder_model_merged.ort": "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    "tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
}
UPDATE_MS = 320.0  # a window of 4 s takes 60 ms of a core with each update, one of 10 s 130
# Partials an interval in the first second, 30 ms of a core each: a caller who speaks over the agent
# is judged by them.
N_EARLY = 2
# Words beside the window's end: full attention to a cut word spoils the word before it too (16
# errors in a hundred words of accented read clips with one held back, 13 with two).
HELD_BACK = 2
# Silence on both sides: beside a window's hard edge words are misheard (13 against 11 errors in a
# hundred words of read clips).
EDGE = RECOGNIZER_HZ // 5
KINDS = ("ort", "onnx")
TOKENS_PER_S = 10.0  # twice what its authors allow: figures are spelled here
# A decode whose last tokens repeat so often (of one or two tokens; of more) goes round in circles.
MOST_REPEATS, MOST_LONG_REPEATS, LONGEST_CIRCLE = 5, 3, 8
# A mean log-probability below which nothing was said (what is heard rightly has -0.8 at the worst,
# mostly over -0.3), and one below which another decode may well say something else.
UNLIKELY_LOG_PROBABILITY, SURE_LOG_PROBABILITY = -1.1, -0.25


class MoonshineOnnxRecognizer(WindowRecognizer):
    """A folder of encoder_model and decoder_model_merged, .ort or .onnx, by itself that of tiny.

    folder: on disk; None for the package's. n_threads: cores that one decode takes. update_ms: how
    much new audio makes a partial due.

    Raises: AudioError if a package or a file is absent or none of Moonshine's; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        n_threads: int = 1,
        update_ms: float = UPDATE_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        found = Path(folder) if folder is not None else checked_folder()
        decoder = MoonshineOnnxDecoder(found, n_threads)
        super().__init__(
            decoder,
            update_ms=update_ms,
            n_early=N_EARLY,
            n_held_back=HELD_BACK,
            level=VoicedLevel,
            clock=clock,
        )

    def _check(self, options: RecognizerOptions) -> None:
        # English of any region.
        language = options.language.partition("-")[0].lower() or "en"
        super()._check(replace(options, language=language))


def packaged_folder() -> Path:
    """Where the package's model lies, found without importing it. Raises: MissingExtra."""
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
                f"{REQUIREMENT}, or --stt-model pocketsphinx"
            )
    return folder


class MoonshineOnnxDecoder:
    """The model over one window; it sees neither what was said before the window nor a prompt."""

    languages = ("en",)

    def __init__(self, folder: Path, n_threads: int = 1) -> None:
        self._encoder = _session(folder, "encoder_model", n_threads)
        self._decoder = _session(folder, "decoder_model_merged", n_threads)
        has_own = any((folder / f"tokenizer.{kind}").is_file() for kind in ("bin", "json"))
        self._vocabulary = MoonshineVocabulary(folder if has_own else packaged_folder())
        self._encoder_inputs = {one.name for one in self._encoder.get_inputs()}
        self._decoder_inputs = {one.name for one in self._decoder.get_inputs()}
        states = [i for i in self._decoder.get_inputs() if i.name.startswith("past_key_values.")]
        if not states or "input_values" not in self._encoder_inputs:
            raise AudioError(f"expected Moonshine's encoder and merged decoder in {folder}")
        self._states = {i.name.replace("past_key_values", "present"): i.name for i in states}
        self._no_state = np.zeros((1, states[0].shape[1], 0, states[0].shape[3]), np.float32)
        self._hints = lru_cache(maxsize=64)(self._read_hints)

    def encode_text(self, text: str) -> tuple[int, ...]:
        return ()

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        return [self._decode(request) for request in requests]

    def _decode(self, request: DecodeRequest) -> DecodedWindow:
        forced = [token for word in request.prefix for token in word.tokens]
        n_most = max_new_tokens(request, TOKENS_PER_S) - len(forced)
        hints = self._hints(request.hints)
        tokens, log_probability = self._greedy(request.samples, forced, n_most, hints)
        if log_probability < UNLIKELY_LOG_PROBABILITY and not forced:
            tokens = []
        tail = self._vocabulary.words(tokens)
        spans_ms: tuple[tuple[float, float], ...] = ()
        if request.with_times:
            spans_ms = proportional_spans((*request.prefix, *tail), request.samples)
        return DecodedWindow(tail, spans_ms, log_probability >= SURE_LOG_PROBABILITY)

    def _greedy(
        self, samples: Samples, forced: Sequence[int], n_most: int, hints: PhraseHints
    ) -> tuple[list[int], float]:
        """The tokens after the forced ones, and the mean of their log-probabilities."""
        context = self._encode(samples)
        states: dict[str, Any] = dict.fromkeys(self._states.values(), self._no_state)
        fed, tokens = [START, *forced], list[int]()
        log_probabilities: list[float] = []
        while len(tokens) < n_most:
            is_first = not tokens
            # What the decoder made of the sound stays as it was after the first step.
            names = [name for name in self._states if is_first or ".decoder." in name]
            inputs = {**context, **states, "input_ids": np.array([fed])}
            inputs["use_cache_branch"] = np.array([not is_first])
            logits, *grown = self._decoder.run(["logits", *names], inputs)
            states |= zip((self._states[name] for name in names), grown, strict=True)
            token, log_probability = self._choose(logits[0, -1], forced, tokens, hints)
            if token == END:
                break
            tokens.append(token)
            log_probabilities.append(log_probability)
            fed = [token]
            if n_circling := _n_circling(tokens):
                del tokens[-n_circling:]
                break
        return tokens, float(np.mean(log_probabilities or 0.0))

    def _choose(
        self,
        logits: NDArray[np.float32],
        forced: Sequence[int],
        tokens: Sequence[int],
        hints: PhraseHints,
    ) -> tuple[int, float]:
        """The next token and the logarithm of the model's own probability of it."""
        is_beginning = not forced and not tokens
        vocabulary = self._vocabulary
        penalties = vocabulary.penalties_of_beginning if is_beginning else vocabulary.penalties
        scores = logits - penalties
        hints.push(scores, [*forced, *tokens])
        token = int(scores.argmax())
        largest = logits.max()
        return token, float(logits[token] - largest - np.log(np.exp(logits - largest).sum()))

    def _encode(self, samples: Samples) -> dict[str, NDArray[Any]]:
        """What the decoder is given of the sound."""
        wave = np.pad(samples.astype(np.float32) / 32768.0, EDGE)[None]
        mask = np.ones(wave.shape, np.int64)
        inputs = {"input_values": wave, "attention_mask": mask}
        (rows,) = self._encoder.run(
            None, {name: inputs[name] for name in self._encoder_inputs & inputs.keys()}
        )
        context = {"encoder_hidden_states": rows, "encoder_attention_mask": mask}
        return {name: context[name] for name in self._decoder_inputs & context.keys()}

    def _read_hints(self, phrases: tuple[str, ...]) -> PhraseHints:
        written = (text for phrase in phrases for text in (phrase, phrase.capitalize()))
        return PhraseHints(filter(None, map(self._vocabulary.encode, written)))


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


def _n_circling(tokens: Sequence[int]) -> int:
    """How many of the last tokens only say again what stands before them."""
    for length in range(1, LONGEST_CIRCLE + 1):
        most = MOST_REPEATS if length <= 2 else MOST_LONG_REPEATS
        circle = tokens[-length:]
        n_more = length * most
        if len(tokens) >= n_more + length and list(circle) * (most + 1) == list(
            tokens[-n_more - length :]
        ):
            return n_more
    return 0
