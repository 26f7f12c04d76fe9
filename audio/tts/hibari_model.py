"""hibari's network and its phonemizer, as the wheel `hibari-tts` brings them: words to samples.

The wheel (Apache-2.0) holds one voice, "heart". Its others would be downloaded where they are first
named, so none is: only the files below are read, and each must be the one this was written for.
The network stretches its phonemes by durations of its own and does not give them out; they become
one more output of the graph here, and tell when each word is spoken.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import AudioError, MissingExtra
from ..frames import samples_in
from ..phonemes import MARKED
from .reply import Waveform

MODEL_HZ = 24_000
VOICE = "heart"
REQUIREMENT = "hibari-tts==0.2.1"
SHA256 = {
    "hibari.onnx": "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
    "oov.onnx": "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
    "oov.json": "b462e6e5dbdf0e7346c732385d0dd844f612f1770871441c56932bff4ca75d8c",
    "lexicon_us_gold.json.gz": "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2",
    "lexicon_us_silver.json.gz": "c4c2546ebf1eb07010331e7ef785a431aa17ba8e7bfb6b4af8d654ee96a71fd3",
    "normalize.json": "d478ff05404bc43ac3e0468e306674e51085f1b1afc94cdef7c7ea4fb0d56bd8",
    "tagger.json.gz": "d2da7502284bbbe45d49e0b7ce3ce67bdab82254150f4317f1b8559b4d38d0eb",
    "tokenizer_exceptions.json": "ddf3a3da07bdcf5144270ea4530191d8580fb4fd6f5ae93296e87916e795659a",
    "vocab.json": "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
}

FRAME_MS = 25.0  # what the durations count; the network gives two spectra for each
DURATIONS = "/CumSum_output_0"  # int64 [n_phonemes]: frames up to the end of each phoneme
LETTER_A = "\u02c8A"  # also "ay", which is how `normalize` writes the letter of "a.m."
PAD = 0  # the phoneme before the first and after the last
MARKS = frozenset(';:,.!?\u2014\u2026"()\u201c\u201d')  # phonemes that are a pause, not a sound
# What is computed behind a clause and not said: before it the voice stays up as within a sentence
# (17 clauses: 195 Hz at their ends), where by itself it falls behind any mark (comma 155 Hz, full
# stop 150). The marks make a silence to cut in: without them "Sure," took the next sound along.
BEFORE_GOING_ON, GOES_ON = "\u2014,", "\u0254\u0279"
HUSH_MS, HUSH_STEP_MS = 20.0, 10.0  # the silence is looked for so far into that word, in such steps
# 10 s of speech, some 80 ms of computing. More in one word is no word: only so much is said.
MAX_PHONEMES = 160
KEPT_TEXTS = 512  # clauses whose phonemes are kept: reading one takes some 2 ms
MAX_WORD_CHARS = 48  # the phonemizer takes the cube of a word's length: so much is 30 ms
STAND_IN = "Anna"  # a name, which "'s" may follow and nothing around it reads otherwise
SEED = 0  # of the breath in the voice: the same words give the same samples


def _field(number: int, payload: bytes) -> bytes:
    """One field of a protobuf message; the payload is shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(payload))) + payload


def as_output(name: str) -> bytes:
    """Return what makes a value of a graph one more output of it, behind the bytes of its file.

    Protobuf merges what stands behind a message into it: ModelProto.graph (7) gets one more
    GraphProto.output (12), a ValueInfoProto with this name (1).
    """
    return _field(7, _field(12, _field(1, name.encode())))


def session_of(graph: bytes, threads: int) -> Any:
    """An onnxruntime session on so many threads of the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class PhonemeModel(ABC):
    """hibari's phonemizer, and a network that speaks such phonemes, one voice or several.

    Raises: MissingExtra if the wheel is absent; AudioError if a file in it is not as expected.
    """

    def __init__(self) -> None:
        files = checked_files()
        from hibari.g2p import G2P
        from hibari.g2p.normalize import normalize

        self._normalize = normalize
        self._phonemizer = G2P()
        self._phonemizer.oov("hibari")  # else its network is read at the first unknown word
        self._stand_in = str(self._phonemizer(STAND_IN, normalize_text=False))
        self._phonemes_by_text = lru_cache(KEPT_TEXTS)(self._read)
        self._ids: dict[str, int] = json.loads(files["vocab.json"].read_text("utf-8"))

    def phonemes(self, text: str) -> tuple[str, ...]:
        """The phonemes of each word of text, words being what white space parts."""
        return self._phonemes_by_text(text)

    def _read(self, text: str) -> tuple[str, ...]:
        """Words said by their sounds are read as a name in their place, and then those sounds."""
        written = text.split()
        said = [MARKED.search(word) for word in written]
        words = [
            word.replace(match[0], STAND_IN + (match[2] or "")) if match else word
            for word, match in zip(written, said, strict=True)
        ]
        return tuple(
            found.replace(self._stand_in, match[1], 1) if match else found
            for found, match in zip(self._read_words(words), said, strict=True)
        )

    def _read_words(self, words: Sequence[str]) -> tuple[str, ...]:
        words = [word[:MAX_WORD_CHARS] for word in words]
        line = " ".join(words)
        try:
            # Its own normalization reads abbreviations: "St. James St." has two of them.
            for read in (self._normalize(line), line):
                found = self._phonemes_of(read)
                if len(found) == len(words):
                    return tuple(found)
        except Exception:  # it raises whatever an odd word makes it stumble over
            pass
        return tuple(self._word_phonemes(word) for word in words)

    def _phonemes_of(self, line: str) -> list[str]:
        tokens = self._phonemizer.tokenize(line)
        _name_letters(tokens)
        found: list[str] = []
        is_open = False
        for token in self._phonemizer.phonemize_tokens(tokens):
            if not is_open:
                found.append("")
            found[-1] += token.phonemes or ""
            is_open = not token.whitespace
        return found

    def _word_phonemes(self, word: str) -> str:
        """Return the phonemes of one word by itself; a word the phonemizer stumbles over is not
        said.
        """
        try:
            return str(self._phonemizer(word, normalize_text=False))
        except Exception:
            return ""

    @abstractmethod
    def _run(self, ids: list[int], speed: float, voice: str) -> tuple[Waveform, Any]:
        """Samples float32 [n] at MODEL_HZ, and the frame at which each phoneme has ended."""

    def speak(
        self, words: Sequence[str], speed: float, *, voice: str = "", goes_on: bool = False
    ) -> tuple[Waveform, list[tuple[float, float]]]:
        """Words' phonemes to samples float32 [n] at MODEL_HZ, and each word's start and end in ms.

        A word without a phoneme of the network's takes no time. No phoneme at all: no samples.
        goes_on: more of the sentence follows, and the voice tells so.
        """
        ids, places = self._network_ids(words)
        if len(ids) <= 2:
            return np.zeros(0, np.float32), [(0.0, 0.0)] * len(words)
        if goes_on:
            mark = "" if words[-1][-1:] in MARKS else ","
            marked = words[-1] + mark + BEFORE_GOING_ON
            ids, places = self._network_ids([*words[:-1], marked, GOES_ON])
        wave, ends = self._run(ids, speed, voice)
        edges_ms = FRAME_MS * np.concatenate(([0], ends.reshape(-1)))
        # A sound begins in the space before its phoneme: some 40 ms early where a pause shows it.
        starts_ms = (edges_ms[:-1] + edges_ms[1:]) / 2
        times = [
            (float(starts_ms[first - 1] if first < last else edges_ms[last]), float(edges_ms[last]))
            for first, last in places
        ]
        if goes_on:
            next_ms, _ = times.pop()
            said_ms = max((end for start, end in times if start < end), default=0.0)
            _hush(wave, said_ms, next_ms + HUSH_MS)
        return wave, times

    def _network_ids(self, words: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """The network's input, and where in it each word's sounds begin and end."""
        ids: list[int] = [PAD]
        places: list[tuple[int, int]] = []
        for word in words:
            known = [phoneme for phoneme in word if phoneme in self._ids][:MAX_PHONEMES]
            if known and len(ids) > 1:
                ids.append(self._ids[" "])
            first = len(ids)
            ids += [self._ids[phoneme] for phoneme in known]
            sounds = [i for i, phoneme in enumerate(known) if phoneme not in MARKS]
            places.append((first, first + sounds[-1] + 1 if sounds else first))
        return [*ids, PAD], places


class HibariModel(PhonemeModel):
    """The voice "heart" on so many threads. Raises: as `PhonemeModel`."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__()
        from hibari import dsp

        graph = checked_files()["hibari.onnx"].read_bytes() + as_output(DURATIONS)
        self._session = session_of(graph, threads)
        self._vocoder = dsp.synth

    def _run(self, ids: list[int], speed: float, voice: str) -> tuple[Waveform, Any]:
        *spectra, ends = self._session.run(
            None, {"ids": np.array([ids], np.int64), "speed": np.array([speed], np.float32)}
        )
        noise = np.random.default_rng(SEED)
        return self._vocoder(*(spectrum[0] for spectrum in spectra), noise), ends


def _hush(wave: Waveform, from_ms: float, to_ms: float) -> None:
    """Silence wave, float32 [n] at MODEL_HZ, from the quietest step on between two times."""
    step = samples_in(HUSH_STEP_MS, MODEL_HZ)
    first = samples_in(from_ms, MODEL_HZ)
    n_steps = max(1, (samples_in(to_ms, MODEL_HZ) - first) // step)
    steps = wave[first : first + n_steps * step].reshape(n_steps, step)
    quietest = int(np.argmin(np.mean(np.square(steps), axis=1)))
    steps[quietest] *= np.linspace(1.0, 0.0, step, dtype=np.float32)
    wave[first + (quietest + 1) * step :] = 0.0


def _name_letters(tokens: Sequence[Any]) -> None:
    """The letter A by its name where it is no article: in a spelled name, or "A as in apple"."""
    texts = ["", *(token.text for token in tokens), ""]
    for before, token, after in zip(texts, tokens, texts[2:], strict=False):
        in_name = _is_capital(before) or _is_capital(after) or after == "as"
        if token.text == "ay" or (token.text == "A" and in_name):
            token.phonemes = LETTER_A


def _is_capital(text: str) -> bool:
    return len(text) == 1 and text.isupper()


def checked_files() -> dict[str, Path]:
    """Each file of SHA256 in the installed wheel."""
    spec = find_spec("hibari")  # found, not imported: nothing of it runs before it is checked
    if spec is None or spec.origin is None:
        raise MissingExtra(REQUIREMENT, "this voice", extra="")
    folder = Path(spec.origin).parent / "assets"
    files = {name: folder / name for name in SHA256}
    for name, path in files.items():
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no such file"
        if found != SHA256[name]:
            raise AudioError(
                f"expected {name} of {REQUIREMENT} with the sha256 {SHA256[name][:16]}..., found "
                f"{found[:16]} in {str(folder)!r}; remedy: pip install --force-reinstall "
                f"{REQUIREMENT}, or --tts-model espeak"
            )
    return files
