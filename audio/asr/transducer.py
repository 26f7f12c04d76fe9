"""A streaming transducer as recognizer: append-only partials, batched over calls on a tick.

Owns the streams; the model is one function over immutable states (`transducer_model`). A flush
runs the caller's words to their end on a copy of the state with silence behind them, so the
stream itself is not disturbed; what it gave is the final if only silence follows. A word is
stable once the next one has begun: no stable word is ever taken back.
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import AudioError
from ..frames import RECOGNIZER_HZ, Samples
from ..stream import Event, Partial, RecognizerOptions, Transcript, Word, failed
from .log_mel import LogMel, MelStream
from .queued_recognizer import Finalize, QueuedRecognizer, QueuedStream
from .speech_level import SpeechLevel
from .transducer_model import CLASSES, EmittedToken, TransducerModel, TransducerState

FRAME_MS = 80.0  # of the encoder: 8 feature frames of 10 ms
TICK_S = 0.080
# Silence run behind a flush: the model says a word up to two frames after its last sound.
FLUSH_FRAMES = 2
SHORTEST_SEGMENT = RECOGNIZER_HZ // 10  # 100 ms: less holds no word
MAX_BATCH = 64
LANGUAGE_TAG = re.compile(r"<[a-z]{2,3}(?:-[A-Za-z]{2,4})?>")  # what 3.5 says after a sentence


@dataclass(frozen=True, slots=True)
class _EarlyFinal:
    """The segment's words if only silence came after position."""

    position: int
    tokens: tuple[EmittedToken, ...]


@dataclass(slots=True)
class _Hearing:
    """Features not yet decoded, the state behind the decoded ones, and the tokens they gave."""

    mels: MelStream
    state: TransducerState
    tokens: list[EmittedToken] = field(default_factory=list)

    def fork(self) -> "_Hearing":
        return _Hearing(self.mels.fork(), self.state, list(self.tokens))


class _Stream(QueuedStream):
    """One caller; positions are samples from the stream's start."""

    def __init__(self, stream_id: str, options: RecognizerOptions, hearing: _Hearing) -> None:
        super().__init__(stream_id, options)
        self.segment_options = options
        self.level = SpeechLevel()
        self.position = 0
        self.start = 0
        self.hearing = hearing
        self.trial: _Hearing | None = None  # the copy that hears silence after the request
        self.n_trial_frames = 0  # feature frames the trial must reach
        self.early: _EarlyFinal | None = None
        self.shown: tuple[str, ...] = ()

    def hear(self, samples: Samples) -> int:
        """All of it becomes features."""
        self.position += len(samples)
        self.level.feed(samples)
        self.hearing.mels.push(samples)
        return len(samples)

    def open_segment(self, hearing: _Hearing) -> None:
        self.n_segment += 1
        self.start = self.position
        self.segment_options = self.options
        self.hearing = hearing
        self.early, self.shown = None, ()


class TransducerRecognizer(QueuedRecognizer[_Stream]):
    """A folder of `nemotron_asr_streaming` (English) or `nemotron3_5_asr` (many languages).

    device: "cpu", "cuda" or "auto". n_lookahead: frames of 80 ms that a word waits for, one of
    those the checkpoint was trained with; None for the next to shortest.

    Raises: AudioError if a package, the folder or the device is absent; it names the remedy.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        device: str = "auto",
        n_lookahead: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        kind = model_type(Path(folder))
        if kind not in CLASSES:
            raise AudioError(f"expected a model of {', '.join(CLASSES)}, found {kind!r}")
        self._model = TransducerModel(Path(folder), kind, device, n_lookahead)
        extractor = self._model.processor.feature_extractor
        self._front_end = LogMel(self._model.torch, extractor, self._model.device)
        self._tokenizer = self._model.processor.tokenizer
        super().__init__(tuple(self._model.prompts) or ("en",))
        self._clock = clock
        self._ticked_s = float("-inf")

    def has_work(self) -> bool:
        streams = self._streams.values()
        if any(s.has_waiting or s.request is not None for s in streams):
            return True
        due = [s for s in streams if self._next(s) is not None]
        return bool(due) and self._is_tick(due)

    def step(self) -> list[Event]:
        """One chunk of every stream that is due; a request does not wait for the tick."""
        events: list[Event] = []
        due: list[_Stream] = []
        for stream in self._streams.values():
            stream.absorb()
            while self._answer(stream, events):
                stream.absorb()
            if self._next(stream) is not None:
                due.append(stream)
        if due and (any(s.request for s in due) or self._is_tick(due)):
            due.sort(key=lambda stream: stream.request is None)
            self._advance(due[:MAX_BATCH], events)
            for stream in due[:MAX_BATCH]:
                while self._answer(stream, events):
                    stream.absorb()
        return events

    def _new_stream(self, stream_id: str, options: RecognizerOptions) -> _Stream:
        return _Stream(stream_id, options, self._new_hearing())

    def _new_hearing(self) -> _Hearing:
        return _Hearing(MelStream(self._front_end), self._model.initial)

    def _is_tick(self, due: Sequence[_Stream]) -> bool:
        return len(due) == len(self._streams) or self._clock() - self._ticked_s >= TICK_S

    def _next(self, stream: _Stream) -> _Hearing | None:
        """Return what of the stream has a whole chunk to decode: the stream itself, then its
        trial.
        """
        hearing = stream.hearing
        if hearing.mels.has(self._model.n_mels(hearing.state)):
            return hearing
        if stream.trial is not None and stream.trial.mels.n_taken < stream.n_trial_frames:
            return stream.trial
        return None

    def _advance(self, due: Sequence[_Stream], events: list[Event]) -> None:
        hearings = [h for stream in due if (h := self._next(stream)) is not None]
        mels = [h.mels.take(self._model.n_mels(h.state)) for h in hearings]
        prompts = [self._model.prompts.get(s.segment_options.language, 0) for s in due]
        self._ticked_s = self._clock()
        try:
            results = self._model.advance([h.state for h in hearings], mels, prompts)
        except Exception as error:  # no state is left to go on from
            for stream in due:
                self.close(stream.stream_id)
                events.append(failed(stream.stream_id, error))
            return
        for stream, hearing, (state, tokens) in zip(due, hearings, results, strict=True):
            hearing.state = state
            hearing.tokens.extend(tokens)
            if tokens and hearing is stream.hearing:
                self._show(stream, events)

    def _show(self, stream: _Stream, events: list[Event]) -> None:
        words = tuple(word.text for word in self._words(stream, stream.hearing.tokens))
        if words != stream.shown:
            stream.shown = words
            events.append(
                Partial(stream.stream_id, stream.n_segment, words[:-1], words[-1:], False)
            )

    def _answer(self, stream: _Stream, events: list[Event]) -> bool:
        """Answers the stream's request if all is known, else starts a trial with silence."""
        request, hearing = stream.request, stream.hearing
        if request is None or stream.stream_id not in self._streams:
            return False
        early = stream.early
        n_spoken = len(hearing.tokens)
        is_early_right = (
            early is not None
            and stream.level.is_quiet_since(early.position)
            and early.tokens[:n_spoken] == tuple(hearing.tokens)
        )
        if early is not None and is_early_right:
            tokens = early.tokens
        elif stream.position - stream.start < SHORTEST_SEGMENT or (
            not n_spoken and stream.level.is_silent_since(stream.start)
        ):
            tokens = ()
        elif stream.trial is None:
            if self._next(stream) is None:  # what was said before is decoded
                self._start_trial(stream)
            return False
        elif stream.trial.mels.n_taken >= stream.n_trial_frames:
            tokens = tuple(stream.trial.tokens)
            stream.early = _EarlyFinal(stream.position, tokens)
        else:
            return False
        stream.request = stream.trial = None
        words = self._words(stream, tokens)
        if isinstance(request, Finalize):
            events.append(Transcript(stream.stream_id, stream.n_segment, words))
            stream.open_segment(self._new_hearing())
        else:
            said = tuple(word.text for word in words)
            n_stable = max(0, len(stream.shown) - 1)
            stable = said[:n_stable] if said[:n_stable] == stream.shown[:n_stable] else ()
            events.append(
                Partial(stream.stream_id, stream.n_segment, stable, said[len(stable) :], True)
            )
        return True

    def _start_trial(self, stream: _Stream) -> None:
        """A copy that hears silence until FLUSH_FRAMES after the last sample, in whole chunks."""
        model, mels = self._model, stream.hearing.mels
        n_wanted = mels.n_samples // self._front_end.hop + FLUSH_FRAMES * model.subsampling_factor
        n_chunk = model.subsampling_factor * model.n_chunk
        first = model.n_mels(model.initial)
        n_chunks = max(0, -(-(n_wanted + 1 - first) // n_chunk))
        stream.n_trial_frames = first + n_chunks * n_chunk
        stream.trial = stream.hearing.fork()
        n_missing = self._front_end.n_samples(stream.n_trial_frames) - mels.n_samples
        stream.trial.mels.push(np.zeros(max(0, n_missing), np.int16))

    def _words(self, stream: _Stream, tokens: Sequence[EmittedToken]) -> tuple[Word, ...]:
        """Tokens as words; a piece that opens a word says so by its leading mark of a space."""
        specials = set(self._tokenizer.all_special_ids)
        groups: list[list[EmittedToken]] = []
        for token in tokens:
            if token.token in specials:
                continue
            piece = self._tokenizer.convert_ids_to_tokens(token.token) or ""
            if not groups or piece.startswith("\u2581"):
                groups.append([])
            groups[-1].append(token)
        start_ms = 1000.0 * stream.start / RECOGNIZER_HZ
        words = []
        for group in groups:
            text = LANGUAGE_TAG.sub("", self._tokenizer.decode([t.token for t in group])).strip()
            if text:
                first, last = group[0].frame, group[-1].frame + 1
                words.append(Word(text, start_ms + FRAME_MS * first, start_ms + FRAME_MS * last))
        return tuple(words)


def model_type(folder: Path) -> str:
    """The architecture a Hugging Face folder names. Raises: AudioError if it names none."""
    path = folder / "config.json"
    if not path.is_file():
        raise AudioError(
            f"expected a model folder with config.json, found none at {str(folder)!r}; "
            "remedy: voiceloop models pull NAME, or name the folder you downloaded"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AudioError(f"expected JSON in {path}, found: {error}") from error
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str):
        raise AudioError(f"expected a model_type in {path}, found {kind!r}")
    return kind
