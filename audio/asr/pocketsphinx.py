"""The embedded recognizer: pocketsphinx, one pass, streaming; a fallback that needs no download.

One decoder a stream (30 ms to make, more with many phrases; 14 MB), made when there is something
to decode, one a step: calls that open together must not hold up one that speaks. pocketsphinx holds
the interpreter lock while it decodes, so `step` gives each stream a short piece of audio and
returns. The cepstral mean is seeded, and carried from segment to segment and over a change of
options.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from ..errors import AudioError, UnknownStream
from ..frames import RECOGNIZER_HZ, Samples, duration_ms, samples_in
from ..stream import Event, Partial, RecognizerOptions, StreamFailed, Transcript, Word
from .cepstral_mean import CepstralMean
from .pocketsphinx_decoder import Hypothesis, ModelFiles, SegmentDecoder, find_model

FRAME = RECOGNIZER_HZ // 100  # of the acoustic model: 10 ms
STEP_MS = 80.0  # audio a stream decodes in one step: about 10 ms of work on a slow core
# From so much of a call's first segment its cepstral mean is learned; the audio is decoded again,
# step by step. Shorter ones measured worse than none: they see too few phones.
LEARN_MS = 1000.0
MAX_BACKLOG_S = 600.0  # what a client may send uncommitted when turn detection is off
# A word is stable once it has stood unchanged for so much audio. The last word never is: its end
# is not decided.
STABLE_MS = 300.0


class _Mark(Enum):
    FLUSH = 1
    FINALIZE = 2


_Queued: TypeAlias = Samples | _Mark


@dataclass(slots=True)
class _Stream:
    options: RecognizerOptions  # of the next decoder
    decoder: SegmentDecoder | None = None  # of the present segment
    mean: CepstralMean = field(default_factory=CepstralMean)
    queue: deque[_Queued] = field(default_factory=deque)
    n_queued: int = 0  # samples in queue
    segment: int = 0
    n_fed: int = 0  # samples given to the decoder in this stream
    n_heard: int = 0  # the most that n_fed has been
    segment_start: int = 0  # of n_fed before this segment
    options_changed: bool = False  # since the decoder was made
    # The first segment's audio, kept until the mean is learned from it.
    first_audio: list[Samples] | None = field(default_factory=list)
    stability: "_Stability" = field(default_factory=lambda: _Stability())
    reported: tuple[tuple[str, ...], int] = ((), 0)  # words of the last Partial, and stable ones

    @property
    def is_due(self) -> bool:
        return self.n_queued >= FRAME or any(isinstance(item, _Mark) for item in self.queue)

    @property
    def needs_decoder(self) -> bool:
        return self.decoder is None and not isinstance(self.queue[0], _Mark)

    def renew_decoder(self) -> None:
        """The next segment begins: changed options want another decoder."""
        if self.options_changed:
            self.decoder, self.options_changed = None, False


class PocketsphinxRecognizer:
    """`RecognizerModel` over pocketsphinx.

    model: "domain" for the small language model of orders, bookings and small talk, "generic"
    for the one in the pocketsphinx wheel.

    Raises: MissingExtra if pocketsphinx is absent; AudioError if a model file is.
    """

    def __init__(self, model: str = "domain") -> None:
        self._files: ModelFiles = find_model(model)
        self._streams: dict[str, _Stream] = {}
        # A broken file is found now.
        SegmentDecoder(self._files, RecognizerOptions(), CepstralMean())

    def open(self, stream_id: str, options: RecognizerOptions) -> None:
        """Raises: AudioError on a language other than English, or an id in use."""
        _check(options)
        if stream_id in self._streams:
            raise AudioError(f"expected a new stream id, found {stream_id!r} in use")
        self._streams[stream_id] = _Stream(options)

    def feed(self, stream_id: str, samples: Samples) -> None:
        stream = self._stream(stream_id)
        if len(samples):
            stream.queue.append(np.ascontiguousarray(samples, dtype=np.int16))
            stream.n_queued += len(samples)

    def flush(self, stream_id: str) -> None:
        self._stream(stream_id).queue.append(_Mark.FLUSH)

    def finalize(self, stream_id: str) -> None:
        self._stream(stream_id).queue.append(_Mark.FINALIZE)

    def set_options(self, stream_id: str, options: RecognizerOptions) -> None:
        """Raises: AudioError on a language other than English."""
        _check(options)
        stream = self._stream(stream_id)
        stream.options_changed = stream.options_changed or options != stream.options
        stream.options = options
        if stream.n_fed == stream.segment_start:
            stream.renew_decoder()

    def close(self, stream_id: str) -> None:
        self._streams.pop(stream_id, None)

    def has_work(self) -> bool:
        return any(stream.is_due for stream in self._streams.values())

    def step(self) -> list[Event]:
        """At most STEP_MS of audio and the marks after it, of each stream."""
        events: list[Event] = []
        has_made_decoder = False
        for stream_id, stream in list(self._streams.items()):
            if not stream.is_due:
                continue
            if stream.needs_decoder:
                if has_made_decoder:
                    continue
                has_made_decoder = True
                stream.decoder = SegmentDecoder(self._files, stream.options, stream.mean)
            try:
                events += self._advance(stream_id, stream)
            except (AudioError, RuntimeError) as error:  # the binding raises plain RuntimeErrors
                self.close(stream_id)
                events.append(StreamFailed(stream_id, f"pocketsphinx: {error}", retryable=True))
        return events

    def _stream(self, stream_id: str) -> _Stream:
        if stream_id not in self._streams:
            raise UnknownStream(stream_id)
        return self._streams[stream_id]

    def _advance(self, stream_id: str, stream: _Stream) -> list[Event]:
        if stream.n_queued > MAX_BACKLOG_S * RECOGNIZER_HZ:
            raise AudioError(
                f"expected at most {MAX_BACKLOG_S:.0f} s of audio waiting, "
                f"found {stream.n_queued / RECOGNIZER_HZ:.0f} s"
            )
        events: list[Event] = []
        samples = _take(stream, _n_step(stream))
        if len(samples):
            assert stream.decoder is not None
            stream.decoder.decode(samples)
            stream.n_fed += len(samples)
            if stream.first_audio is not None:
                self._learn_mean(stream, stream.decoder, samples)
            if stream.n_fed >= stream.n_heard:  # else the first second is being decoded again
                stream.n_heard = stream.n_fed
                stream.stability.observe(stream.decoder.hypothesis())
                events += self._partial(stream_id, stream)
        while stream.queue and isinstance(stream.queue[0], _Mark):
            match stream.queue.popleft():
                case _Mark.FLUSH:
                    if stream.decoder is not None:
                        stream.stability.observe(stream.decoder.hypothesis())
                    events += self._partial(stream_id, stream, flushed=True)
                case _Mark.FINALIZE:
                    events.append(self._finish_segment(stream_id, stream))
        return events

    def _learn_mean(self, stream: _Stream, decoder: SegmentDecoder, samples: Samples) -> None:
        """Once a call: decode the first second again with the mean it turned out to have."""
        assert stream.first_audio is not None
        stream.first_audio.append(samples)
        if decoder.n_samples >= samples_in(LEARN_MS, RECOGNIZER_HZ):
            decoder.restart()
            stream.queue.extendleft(reversed(stream.first_audio))
            again = sum(map(len, stream.first_audio))
            stream.n_queued += again
            stream.n_heard, stream.n_fed = stream.n_fed, stream.n_fed - again
            stream.first_audio = None

    def _partial(self, stream_id: str, stream: _Stream, flushed: bool = False) -> list[Event]:
        words, n_stable = stream.stability.words, stream.stability.n_stable
        if (words, n_stable) == stream.reported and not flushed:
            return []
        stream.reported = (words, n_stable)
        return [Partial(stream_id, stream.segment, words[:n_stable], words[n_stable:], flushed)]

    def _finish_segment(self, stream_id: str, stream: _Stream) -> Transcript:
        offset_ms = duration_ms(stream.segment_start, RECOGNIZER_HZ)
        heard = stream.decoder.finish().words if stream.decoder is not None else ()
        words = tuple(
            Word(word.text, offset_ms + word.start_ms, offset_ms + word.end_ms) for word in heard
        )
        transcript = Transcript(stream_id, stream.segment, words)
        stream.first_audio = None  # the decoder has learned the mean from the whole segment
        stream.segment += 1
        stream.segment_start = stream.n_fed
        stream.stability, stream.reported = _Stability(), ((), 0)
        stream.renew_decoder()
        return transcript


class _Stability:
    """Which words of a growing hypothesis will stand."""

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


def _check(options: RecognizerOptions) -> None:
    if options.language.split("-")[0].lower() not in ("en", ""):
        raise AudioError(f"expected the language 'en', found {options.language!r}")


def _n_step(stream: _Stream) -> int:
    """Samples of one step; the mean is learned after exactly LEARN_MS, however sound was cut."""
    n_step = samples_in(STEP_MS, RECOGNIZER_HZ)
    if stream.first_audio is None or stream.decoder is None:
        return n_step
    return min(n_step, samples_in(LEARN_MS, RECOGNIZER_HZ) - stream.decoder.n_samples)


def _take(stream: _Stream, n_most: int) -> Samples:
    """Samples from the front of the queue, up to a mark or n_most; else in whole frames.

    Where its calls end inside a frame moves pocketsphinx's words by a frame or two.
    """
    taken: list[Samples] = []
    n_taken = 0
    while stream.queue and n_taken < n_most and not isinstance(stream.queue[0], _Mark):
        head = stream.queue.popleft()
        assert isinstance(head, np.ndarray)
        taken.append(head[: n_most - n_taken])
        if len(head) > n_most - n_taken:
            stream.queue.appendleft(head[n_most - n_taken :])
        n_taken += len(taken[-1])
    samples = np.concatenate(taken) if taken else np.zeros(0, np.int16)
    n_whole = n_taken if stream.queue else n_taken // FRAME * FRAME
    if n_whole < n_taken:
        stream.queue.appendleft(samples[n_whole:])
    stream.n_queued -= n_whole
    return samples[:n_whole]
