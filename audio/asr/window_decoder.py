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
from .speech_level import BELOW_PEAK_DB, FRAME

# Fast English is 5 words/s at 1.4 tokens each; scripts that byte-level BPE spells out by bytes
# (Hindi, Thai) take up to three times as many. Beyond it the decoder repeats itself.
TOKENS_PER_S, SPARE_TOKENS = 24, 16
MAX_BATCH = 16  # of a decoder that gains from a batch
MAX_TOKENS = 224  # half of Whisper's text context; the other half is for the prompt


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One window: samples int16 [n] at 16 kHz, n <= 30 s, and the words it must start with.

    prompt: tokens of earlier text or hotwords. with_times: say when each word is spoken.
    hints: phrases that are likelier here than elsewhere. guess: tokens that an earlier decode of
    less sound had behind the prefix; where they still hold they need not be found one by one.
    is_paused: the speaker has fallen silent; say, if you can, whether for good. voice_alone: and
    nothing else, for the words are known. end_by_words: say only what the words tell of that.
    is_beginning: it is all there is of a sound so far; say, if you can, whether that is somebody
    who takes the floor. n_digits: it may be a number of so many, which was asked for; 0: none was,
    or it cannot be whole. is_shared: many wait for the decoder; take as little time as may be.
    stream_id: whose it is; what is kept of it goes with the stream.
    """

    samples: Samples
    language: str
    prompt: tuple[int, ...]
    prefix: tuple[HypothesisWord, ...]
    with_times: bool
    hints: tuple[str, ...] = ()
    guess: tuple[int, ...] = ()
    is_paused: bool = False
    voice_alone: bool = False
    end_by_words: bool = False
    is_beginning: bool = False
    n_digits: int = 0
    is_shared: bool = False
    stream_id: str = ""


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """The words after the prefix; spans_ms: (start, end) of each word of prefix + tail in ms from
    the window's start, empty unless asked for. is_anew: the tail takes the prefix's place. is_sure:
    False where the model itself doubts the tail, so that no agreement makes it certain. p_voice:
    log-odds that the speaker has finished, by the sound alone; for_agent: that it begins with words
    for the agent, and is no listener's "mm-hm", noise, echo or bystander; None where nobody asked
    or can tell. by_words: what the decoder's states at the last words say of the end; has_more:
    it says that when it has been asked again."""

    tail: tuple[HypothesisWord, ...]
    spans_ms: tuple[tuple[float, float], ...] = ()
    is_sure: bool = True
    p_voice: float | None = None
    for_agent: float | None = None
    is_anew: bool = False
    by_words: float | None = None
    has_more: bool = False


class WindowDecoder(Protocol):
    @property
    def languages(self) -> tuple[str, ...]: ...

    @property
    def max_batch(self) -> int:
        """Windows decoded at once; 1 where several together take as long as one by one."""

    def encode_text(self, text: str) -> tuple[int, ...]:
        """Tokens of free text, for a prompt."""

    def decode(self, requests: Sequence[DecodeRequest]) -> list[DecodedWindow]:
        """One result a request, in order. Raises: RuntimeError if the device fails."""

    def forget(self, stream_id: str) -> None:
        """The stream is over: nothing of its sound is kept."""


def max_new_tokens(request: DecodeRequest, tokens_per_s: float = TOKENS_PER_S) -> int:
    """Tokens of prefix and tail together that this much audio can hold."""
    n_prefix = sum(len(word.tokens) for word in request.prefix)
    seconds = len(request.samples) / RECOGNIZER_HZ
    return min(MAX_TOKENS, max(n_prefix, int(tokens_per_s * seconds)) + SPARE_TOKENS)


def proportional_spans(
    words: Sequence[HypothesisWord], samples: Samples
) -> tuple[tuple[float, float], ...]:
    """(start, end) in ms of each word: its share of the letters, in time that is not silence."""
    n_frames = len(samples) // FRAME
    if not words:
        return ()
    if not n_frames:
        return ((0.0, 1000.0 * len(samples) / RECOGNIZER_HZ),) * len(words)
    frames = samples[: n_frames * FRAME].reshape(-1, FRAME).astype(np.float64)
    power = np.mean(np.square(frames), axis=1)
    sounding = np.flatnonzero(power >= power.max() * 10 ** (-BELOW_PEAK_DB / 10))
    lengths = np.cumsum([0, *(len(word.text) + 1 for word in words)])
    at = lengths / lengths[-1] * len(sounding)
    starts = sounding[np.minimum(at[:-1].astype(int), len(sounding) - 1)]
    ends = sounding[np.ceil(at[1:]).astype(int) - 1] + 1
    edges_ms = np.stack((starts, ends), axis=1) * (1000.0 * FRAME / RECOGNIZER_HZ)
    return tuple((float(start), float(end)) for start, end in edges_ms)
