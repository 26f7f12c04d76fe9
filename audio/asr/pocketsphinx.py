"""The embedded recognizer: pocketsphinx, one pass, streaming; a fallback that needs no download.

One decoder a stream (30 ms to make, more with many phrases; 14 MB), made when there is something
to decode, one a step: calls that open together must not hold up one that speaks. A stream that has
none goes before one that only has other options now, and these take turns. pocketsphinx holds
the interpreter lock while it decodes, so `step` gives each stream a short piece of audio and
returns. The cepstral mean is seeded, and carried from segment to segment and over a change of
options.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..frames import RECOGNIZER_HZ, Samples, duration_ms, samples_in
from ..stream import Event, Partial, RecognizerOptions, Transcript, Word, failed
from .pocketsphinx_decoder import (
    CepstralMean,
    Hypothesis,
    ModelFiles,
    SegmentDecoder,
    find_model,
)
from .queued_recognizer import Finalize, QueuedRecognizer, QueuedStream

FRAME = RECOGNIZER_HZ // 100  # of the acoustic model: 10 ms
STEP_MS = 80.0  # audio a stream decodes in one step: about 10 ms of work on a slow core
# From so much of a call's first segment its cepstral mean is learned; the audio is decoded again,
# step by step. Shorter ones measured worse than none: they see too few phones.
LEARN_MS = 1000.0
# A word is stable once it has stood unchanged for so much audio. The last word never is: its end
# is not decided.
STABLE_MS = 300.0


class _Stream(QueuedStream):
    """One caller; positions are samples from the stream's start."""

    def __init__(self, stream_id: str, options: RecognizerOptions) -> None:
        super().__init__(stream_id, options)
        self.decoder: SegmentDecoder | None = None
        self.decoder_options = options
        self.made_at = 0  # which of the recognizer's decoders this is; 0: none yet
        self.mean = CepstralMean()
        self.held = np.zeros(0, np.int16)  # heard and not yet decoded
        self.position = 0  # decoded so far
        self.furthest = 0  # the most that position has been
        self.segment_start = 0
        # The first segment's audio, kept until the mean is learned from it.
        self.first_audio: list[Samples] | None = []
        self.stability = _Stability()
        # Words of the last Partial, and how many of them were stable.
        self.reported: tuple[tuple[str, ...], int] = ((), 0)

    @property
    def has_work(self) -> bool:
        return self.has_waiting or self.request is not None or len(self.held) >= FRAME

    @property
    def needs_decoder(self) -> bool:
        """Whether there is sound for a decoder still to be made, the options as they are now."""
        is_new_segment = self.furthest == self.segment_start
        is_outdated = is_new_segment and self.decoder_options != self.options
        return len(self.held) > 0 and (self.decoder is None or is_outdated)

    @property
    def n_step(self) -> int:
        """Samples of one step; the mean is learned after exactly LEARN_MS, however it was cut."""
        n_step = samples_in(STEP_MS, RECOGNIZER_HZ)
        if self.first_audio is None or self.decoder is None:
            return n_step
        return min(n_step, samples_in(LEARN_MS, RECOGNIZER_HZ) - self.decoder.n_samples)

    def hear(self, samples: Samples) -> int:
        """As much as one step decodes."""
        taken = samples[: max(0, self.n_step - len(self.held))]
        self.held = np.concatenate((self.held, taken))
        return len(taken)

    def advance(self) -> list[Event]:
        """Decodes the sound of one step and answers the requests behind it."""
        events: list[Event] = []
        samples = self._take()
        if len(samples):
            assert self.decoder is not None
            self.decoder.decode(samples)
            self.position += len(samples)
            if self.first_audio is not None:
                self._learn_mean(self.decoder, samples)
            if self.position >= self.furthest:  # else the first second is being decoded again
                self.furthest = self.position
                self.stability.observe(self.decoder.hypothesis())
                events += self._partial()
        while self.request is not None and not len(self.held):
            if isinstance(self.request, Finalize):
                events.append(self._finish_segment())
            else:
                if self.decoder is not None:
                    self.stability.observe(self.decoder.hypothesis())
                events += self._partial(is_flushed=True)
            self.request = None
            self.absorb()
        return events

    def _take(self) -> Samples:
        """The held sound of one step: in whole frames, unless all of it is wanted.

        Where its calls end inside a frame moves pocketsphinx's words by a frame or two.
        """
        n_taken = min(len(self.held), self.n_step)
        if n_taken == len(self.held) and self.request is None and not self.has_waiting:
            n_taken = n_taken // FRAME * FRAME
        samples, self.held = self.held[:n_taken], self.held[n_taken:]
        return samples

    def _learn_mean(self, decoder: SegmentDecoder, samples: Samples) -> None:
        """Once a call: decode the first second again with the mean it turned out to have."""
        assert self.first_audio is not None
        self.first_audio.append(samples)
        if decoder.n_samples >= samples_in(LEARN_MS, RECOGNIZER_HZ):
            decoder.restart()
            again = np.concatenate(self.first_audio)
            self.held = np.concatenate((again, self.held))
            self.furthest, self.position = self.position, self.position - len(again)
            self.first_audio = None

    def _partial(self, is_flushed: bool = False) -> list[Event]:
        words, n_stable = self.stability.words, self.stability.n_stable
        if (words, n_stable) == self.reported and not is_flushed:
            return []
        self.reported = (words, n_stable)
        stable, unstable = words[:n_stable], words[n_stable:]
        return [Partial(self.stream_id, self.n_segment, stable, unstable, is_flushed)]

    def _finish_segment(self) -> Transcript:
        offset_ms = duration_ms(self.segment_start, RECOGNIZER_HZ)
        heard = self.decoder.finish().words if self.decoder is not None else ()
        words = tuple(
            Word(word.text, offset_ms + word.start_ms, offset_ms + word.end_ms) for word in heard
        )
        transcript = Transcript(self.stream_id, self.n_segment, words)
        self.first_audio = None  # the decoder has learned the mean from the whole segment
        self.n_segment += 1
        self.segment_start = self.position
        self.stability, self.reported = _Stability(), ((), 0)
        return transcript


class PocketsphinxRecognizer(QueuedRecognizer[_Stream]):
    """`RecognizerModel` over pocketsphinx, its language model one of orders and bookings.

    Raises: MissingExtra if pocketsphinx is absent; AudioError if a model file is.
    """

    def __init__(self) -> None:
        super().__init__(("en",))
        self._n_decoders = 0
        self._files: ModelFiles = find_model()
        # A broken file is found now.
        SegmentDecoder(self._files, RecognizerOptions(), CepstralMean())

    def has_work(self) -> bool:
        return any(stream.has_work for stream in self._streams.values())

    def step(self) -> list[Event]:
        """Advance each stream by at most STEP_MS of audio and the requests behind it."""
        events: list[Event] = []
        for stream in self._streams.values():
            stream.absorb()
        served = self._next_decoder()
        for stream_id, stream in list(self._streams.items()):
            if stream.needs_decoder and stream is not served:
                continue
            try:
                if stream.needs_decoder:  # with a client's own phrases
                    stream.decoder = SegmentDecoder(self._files, stream.options, stream.mean)
                    stream.decoder_options = stream.options
                    self._n_decoders += 1
                    stream.made_at = self._n_decoders
                events += stream.advance()
            except Exception as error:  # the binding raises plain RuntimeErrors, and others
                self.close(stream_id)
                events.append(failed(stream_id, error))
        return events

    def _next_decoder(self) -> _Stream | None:
        """The one stream that gets a decoder in this step: whose last one is the oldest."""
        waiting = (stream for stream in self._streams.values() if stream.needs_decoder)
        return min(waiting, key=lambda stream: stream.made_at, default=None)

    def _new_stream(self, stream_id: str, options: RecognizerOptions) -> _Stream:
        return _Stream(stream_id, options)

    def _check(self, options: RecognizerOptions) -> None:
        # English of any region.
        language = options.language.partition("-")[0].lower() or "en"
        super()._check(replace(options, language=language))


class _Stability:
    """The words of a growing hypothesis that are expected to stay."""

    def __init__(self) -> None:
        self.words: tuple[str, ...] = ()
        self.n_stable = 0
        self._since_ms: list[float] = []  # from where in the segment each word has stood

    def observe(self, hypothesis: Hypothesis) -> None:
        words = tuple(word.text for word in hypothesis.words)
        n_same = _common_prefix(words, self.words)
        n_new = len(words) - n_same
        self._since_ms = self._since_ms[:n_same] + [hypothesis.end_ms] * n_new
        n_stable = 0
        while n_stable < len(words) - 1 and (
            n_stable < min(self.n_stable, n_same)  # what was called stable stays so while it stands
            or hypothesis.end_ms - self._since_ms[n_stable] >= STABLE_MS
        ):
            n_stable += 1
        self.n_stable = n_stable
        self.words = words


def _common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return index
    return min(len(a), len(b))
