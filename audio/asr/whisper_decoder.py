"""Whisper over one window of audio, through CTranslate2 (faster-whisper).

Greedy, without temperature fallbacks (they wreck the slowest answers), without timestamp tokens;
the committed words are forced as the decoder's prefix, so only the tail is decoded. Windows of
several streams share one batch where their padded length allows; a window is padded by its own
length alone, so its words do not depend on what else is in the batch.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AudioError, MissingExtra
from ..frames import RECOGNIZER_HZ, Samples
from .local_agreement import HypothesisWord
from .window_decoder import MAX_BATCH, DecodedWindow, DecodeRequest, max_new_tokens

HOP = 160  # samples between two mel frames: 10 ms
TOKEN_MS = 20.0  # an encoder position
# Whisper was trained on 30 s; a floor of 10 s and 2 s of silence behind the speech lose nothing,
# less does (CTranslate2 issue 2100). Few lengths, so that windows of several streams meet.
PADDED_FRAMES = (1_000, 1_500, 2_000, 2_500, 3_000)
MARGIN_FRAMES = 200
# Whisper's own rule against words in silence: the start token says "no speech" and the words are
# unlikely.
NO_SPEECH_PROBABILITY, UNLIKELY_LOG_PROBABILITY = 0.6, -1.0
MULTILINGUAL_END_OF_TEXT = 50257  # English-only checkpoints have it one lower
# Text whose last tokens say one thing so often, in so many tokens, goes round in a loop: people
# repeat a digit or a "no" less often, and longer things less than three times.
LOOP_SAID, LOOP_TOKENS = 3, 12
N_TIMESTAMPS = 1501  # 0.00 to 30.00 s; a converted tokenizer may lack their names
# Written without spaces: here the library cuts words at every character instead.
UNSPACED_LANGUAGES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
PUNCTUATION = frozenset(".,?!…:;-–—\"'”’)]}。，？！、：；")


class WhisperText:
    """A checkpoint's tokenizer: text, words and the tokens that start a decode.

    Raises: AudioError if the folder holds no tokenizer of Whisper's.
    """

    def __init__(self, folder: Path) -> None:
        try:
            import tokenizers
            from faster_whisper.tokenizer import _LANGUAGE_CODES, Tokenizer
        except ImportError:
            raise MissingExtra("faster-whisper", "Whisper", "whisper") from None

        path = folder / "tokenizer.json"
        if not path.is_file():
            raise AudioError(f"expected tokenizer.json in {folder}, found none")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception for a bad file
            raise AudioError(f"expected a tokenizer in {path}, found: {error}") from error
        end_of_text, no_timestamps = (
            inner.token_to_id(f"<|{name}|>") for name in ("endoftext", "notimestamps")
        )
        if end_of_text is None or no_timestamps is None:
            raise AudioError(f"expected Whisper's special tokens in {path}, found none")
        self.end_of_text: int = end_of_text
        is_multilingual = self.end_of_text >= MULTILINGUAL_END_OF_TEXT
        codes = [c for c in _LANGUAGE_CODES if inner.token_to_id(f"<|{c}|>") is not None]
        self.languages = tuple(codes) if is_multilingual else ("en",)
        # Whatever the decoder says after its start must be text or the end of it.
        self.specials = tuple(range(end_of_text + 1, no_timestamps + 1 + N_TIMESTAMPS))
        self._tokenizers = {
            code: Tokenizer(inner, is_multilingual, "transcribe", code) for code in self.languages
        }

    def start(self, language: str) -> list[int]:
        """The tokens that ask for a transcript without timestamps."""
        tokenizer = self._tokenizers[language]
        return [*tokenizer.sot_sequence, tokenizer.no_timestamps]

    def start_of_previous(self) -> int:
        token: int = self._tokenizers[self.languages[0]].sot_prev
        return token

    def encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizers[self.languages[0]].encode(text))

    def words(self, tokens: Sequence[int], language: str) -> tuple[HypothesisWord, ...]:
        """tokens as words; a mark stands with the word before it, and alone it is no word.

        Where words are written apart, so does all that no space stands before: ".50" after "$4".
        """
        text_tokens = [token for token in tokens if token < self.end_of_text]
        if not text_tokens:
            return ()
        texts, groups = self._tokenizers[language].split_to_word_tokens(text_tokens)
        words: list[HypothesisWord] = []
        stands_apart = True
        for text, group in zip(texts, groups, strict=True):
            bare = text.strip()
            stands_apart |= language in UNSPACED_LANGUAGES or text[:1].isspace()
            if words and (not stands_apart or not bare or set(bare) <= PUNCTUATION):
                last = words[-1]
                words[-1] = HypothesisWord(last.text + bare, (*last.tokens, *group))
            elif bare and not set(bare) <= PUNCTUATION:
                words.append(HypothesisWord(bare, tuple(group)))
            stands_apart = text[-1:].isspace()
        return tuple(words)


class Ct2Decoder:
    """A CTranslate2 folder of Whisper through faster-whisper.

    device: "cpu", "cuda" or "cuda:N"; compute_type as CTranslate2 names it.

    Raises: AudioError if the folder is none of Whisper's, or the device does not serve.
    """

    max_batch = MAX_BATCH

    def __init__(self, folder: Path, device: str, compute_type: str, n_threads: int) -> None:
        try:
            from faster_whisper import WhisperModel
            from faster_whisper.feature_extractor import FeatureExtractor
        except ImportError:
            raise MissingExtra("faster-whisper", "Whisper", "whisper") from None
        try:
            kind, _, index = device.partition(":")
            self._model = WhisperModel(
                str(folder), device=kind, device_index=int(index or 0), compute_type=compute_type,
                cpu_threads=n_threads,
            )  # fmt: skip
        except (RuntimeError, ValueError) as error:
            raise AudioError(
                f"expected a CTranslate2 Whisper in {folder} that runs on {device} as "
                f"{compute_type}, found: {error}"
            ) from error
        # The weights know their mel bins (80, or 128 from large-v3 on); preprocessor_config.json,
        # from which faster-whisper takes them, is often left out of a conversion.
        self._features = FeatureExtractor(feature_size=self._model.model.n_mels)
        self._text = WhisperText(folder)
        self.languages = self._text.languages

    def encode_text(self, text: str) -> tuple[int, ...]:
        return self._text.encode(text)

    def forget(self, stream_id: str) -> None:
        """Do nothing: no window is kept for the next."""

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        results: dict[int, DecodedWindow] = {}
        groups: dict[tuple[int, int, str], list[int]] = defaultdict(list)
        for i, request in enumerate(requests):
            # CTranslate2 wants the start token at one place and one start sequence in a batch.
            frames = padded_frames(len(request.samples))
            groups[frames, len(request.prompt), request.language].append(i)
        for (n_frames, _, language), members in groups.items():
            group = [requests[i] for i in members]
            decoded = self._decode_group(group, n_frames, language)
            results |= dict(zip(members, decoded, strict=True))
        return [results[i] for i in range(len(requests))]

    def _decode_group(
        self, group: list[DecodeRequest], n_frames: int, language: str
    ) -> list[DecodedWindow]:
        features = np.stack([mel_features(self._features, r.samples, n_frames) for r in group])
        encoded = self._model.encode(features)
        prompts = [start_tokens(self._text, request) for request in group]
        n_tokens = max(max_new_tokens(request) for request in group)
        # CTranslate2 gives the text, the prefix included, half of max_length, and no more than is
        # left of it behind the prompt and the start sequence.
        n_before = len(prompts[0]) - _n_tokens(group[0].prefix)
        generated = self._model.model.generate(
            encoded,
            prompts,
            beam_size=1,
            max_length=max(2 * n_tokens, n_tokens + n_before),
            return_scores=True,
            return_no_speech_prob=True,
            suppress_tokens=[-1, *self._text.specials],
        )
        tails = []
        for request, result in zip(group, generated, strict=True):
            n_prefix = _n_tokens(request.prefix)
            tokens = without_loop(result.sequences_ids[0][: max_new_tokens(request)])[n_prefix:]
            is_silence = (
                not request.prefix
                and result.no_speech_prob > NO_SPEECH_PROBABILITY
                and result.scores[0] < UNLIKELY_LOG_PROBABILITY
            )
            tails.append(() if is_silence else self._text.words(tokens, language))
        spans = self._align(encoded, group, tails, language)
        return [DecodedWindow(tail, span) for tail, span in zip(tails, spans, strict=True)]

    def _align(
        self,
        encoded: Any,
        group: list[DecodeRequest],
        tails: list[tuple[HypothesisWord, ...]],
        language: str,
    ) -> list[tuple[tuple[float, float], ...]]:
        if not any(request.with_times for request in group):
            return [()] * len(group)
        words = [(*request.prefix, *tail) for request, tail in zip(group, tails, strict=True)]
        tokens = [[t for word in spoken for t in word.tokens] for spoken in words]
        aligned = self._model.model.align(
            encoded,
            self._text.start(language)[:-1],
            [row or [self._text.end_of_text] for row in tokens],
            [max(2, len(request.samples) // HOP) for request in group],
        )
        spans = []
        for request, spoken, result in zip(group, words, aligned, strict=True):
            wanted = request.with_times and spoken
            window_ms = 1000.0 * len(request.samples) / RECOGNIZER_HZ
            spans.append(_word_spans(spoken, result.alignments, window_ms) if wanted else ())
        return spans


def padded_frames(n_samples: int) -> int:
    """Mel frames that a window of n_samples is padded to."""
    wanted = n_samples // HOP + MARGIN_FRAMES
    return next((n for n in PADDED_FRAMES if n >= wanted), PADDED_FRAMES[-1])


def mel_features(extractor: Any, samples: Samples, n_frames: int) -> NDArray[np.float32]:
    """Log-mel features float32 [n_mels, n_frames] of samples with silence behind them."""
    n_samples = n_frames * HOP
    waveform = np.zeros(n_samples, np.float32)
    waveform[: min(len(samples), n_samples)] = samples[:n_samples] / np.float32(32768.0)
    features: NDArray[np.float32] = extractor(waveform)[:, :n_frames]
    return features


def start_tokens(text: WhisperText, request: DecodeRequest) -> list[int]:
    """Everything the decoder is forced to: prompt, start sequence, committed words."""
    prompt = [text.start_of_previous(), *request.prompt] if request.prompt else []
    prefix = [token for word in request.prefix for token in word.tokens]
    return [*prompt, *text.start(request.language), *prefix]


def without_loop(tokens: Sequence[int]) -> Sequence[int]:
    """tokens up to where they begin to say again, and again, what they have just said.

    A decoder that has lost its place in the sound writes the same words until its limit.
    """
    for length in range(1, len(tokens) // LOOP_SAID + 1):
        start = len(tokens) - length
        while start > 0 and tokens[start - 1] == tokens[start - 1 + length]:
            start -= 1
        if len(tokens) - start >= max(LOOP_SAID * length, LOOP_TOKENS):
            return tokens[: start + length]
    return tokens


def _n_tokens(words: Sequence[HypothesisWord]) -> int:
    return sum(len(word.tokens) for word in words)


def _word_spans(
    words: Sequence[HypothesisWord], alignments: Sequence[tuple[int, int]], window_ms: float
) -> tuple[tuple[float, float], ...]:
    """(start, end) in ms of each word from the path (token index, encoder position)."""
    token_indices = np.array([pair[0] for pair in alignments])
    positions = np.array([pair[1] for pair in alignments])
    starts_ms = positions[np.diff(token_indices, prepend=-1).astype(bool)] * TOKEN_MS
    bounds = np.minimum(np.cumsum([0, *(len(word.tokens) for word in words)]), len(starts_ms) - 1)
    edges = np.minimum(starts_ms[bounds], window_ms)
    return tuple((float(a), float(b)) for a, b in zip(edges[:-1], edges[1:], strict=True))
