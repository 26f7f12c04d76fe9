"""One window of audio and what a decoder says of it: the seam between policy and model.

A model that decodes a growing window again and again (Whisper, Moonshine) implements
`WindowDecoder`; `window_recognizer` decides which windows, when, and what becomes of the words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..frames import RECOGNIZER_HZ, Samples
from .local_agreement import HypothesisWord

# Fast English is 5 words/s at 1.4 tokens each; scripts that byte-level BPE spells out by bytes
# (Hindi, Thai) take up to three times as many. Beyond it the decoder repeats itself.
TOKENS_PER_S, SPARE_TOKENS = 24, 16
MAX_TOKENS = 224  # half of Whisper's text context; the other half is for the prompt


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One window: samples int16 [n] at 16 kHz, n <= 30 s, and the words it must start with.

    prompt: tokens of earlier text or hotwords. with_times: say when each word is spoken.
    window_id: another request of the same one has the same samples, and perhaps more behind
    them; "" for a window of its own.
    """

    samples: Samples
    language: str
    prompt: tuple[int, ...]
    prefix: tuple[HypothesisWord, ...]
    with_times: bool
    window_id: str = ""


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """The words after the prefix; spans_ms: (start, end) of each word of prefix + tail in ms from
    the window's start, empty unless asked for."""

    tail: tuple[HypothesisWord, ...]
    spans_ms: tuple[tuple[float, float], ...] = ()


class WindowDecoder(Protocol):
    @property
    def languages(self) -> tuple[str, ...]: ...

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of free text, for a prompt."""

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        """One result a request, in order. Raises: RuntimeError if the device fails."""


def max_new_tokens(request: DecodeRequest) -> int:
    """Tokens of prefix and tail together that this much audio can hold."""
    n_prefix = sum(len(word.tokens) for word in request.prefix)
    seconds = len(request.samples) / RECOGNIZER_HZ
    return min(MAX_TOKENS, max(n_prefix, int(TOKENS_PER_S * seconds)) + SPARE_TOKENS)


def proportional_spans(
    words: Sequence[HypothesisWord], n_samples: int
) -> tuple[tuple[float, float], ...]:
    """(start, end) in ms of each word, as long as its share of the characters."""
    lengths = np.cumsum([0, *(len(word.text) + 1 for word in words)])
    if not words:
        return ()
    edges = lengths / lengths[-1] * (1000.0 * n_samples / RECOGNIZER_HZ)
    return tuple((float(a), float(b)) for a, b in zip(edges[:-1], edges[1:], strict=True))
