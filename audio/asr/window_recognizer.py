"""A window decoder as a streaming recognizer: LocalAgreement over a window that slides.

Owns the streams: what of each is due, which share a batch, and the final that is decoded early.
At `flush()` (the first low frame of the voice detector) the whole segment is decoded; if only
silence follows, `finalize()` answers with that at once. A fast model need not wait for the flush:
it decodes where the voice falls, some 50 ms before the detector is sure, and has the answer when
it is asked. A model that judges the voice is asked for that once more if the silence lasts; one
that tells no words, what they say of the end as soon as nobody else waits. The model itself is a
`WindowDecoder`.

The words depend on where decodes fall, so streaming equals offline only as far as LocalAgreement
promises: committed words are never retracted. Decodes fall on whole update intervals, so speech
fed in any chunks up to one interval, with a step after each, gives the same events. A segment's
first second may be decoded oftener, for who waits for its first words; those decodes commit none.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..errors import AudioError
from ..frames import RECOGNIZER_HZ, samples_in
from ..stream import Event, Partial, RecognizerOptions, Transcript, Word, failed
from .local_agreement import (
    SENTENCE_CUT_MS,
    HypothesisWord,
    window_cut,
)
from .queued_recognizer import Finalize, Flush, QueuedRecognizer
from .speech_level import SpeechLevel
from .window_decoder import MAX_TOKENS, DecodedWindow, DecodeRequest, WindowDecoder
from .window_stream import (
    KEPT_SILENCE,
    Again,
    EarlyFinal,
    Segment,
    WindowStream,
    tokens_of,
)

BATCH_WAIT_S = 0.005  # requests of several streams this close share a batch
MAX_PROMPT_TOKENS = 100
SHORTEST_WINDOW = RECOGNIZER_HZ // 10  # 100 ms: less holds no word, and the model invents one
EARLY = RECOGNIZER_HZ  # a segment's first second, in which windows are short and cheap to decode
# Silence after which the voice before it is read again. Who is sure to have finished is answered
# sooner; of the others 200 ms behind the detector's pause told more than 100, and a fall is heard
# 50 before that (benchmarks/LOG.md, 2026-11-23, "who is back before the detector hears it").
READ_AGAIN = samples_in(240.0, RECOGNIZER_HZ)
# Up to here a sound over the agent is judged: a pre-roll of 300 ms and the second after which a
# voice that goes on takes the floor (STOP_MS of `call/barge_in.py`).
BEGINNING = samples_in(1300.0, RECOGNIZER_HZ)
MANY_STREAMS = 8  # chosen: beside fewer a long reading of 60 ms meets another in one case of ten
NEVER_CROWDED = RECOGNIZER_HZ  # a second holds 40 tokens at most, whatever the script


class WindowRecognizer(QueuedRecognizer[WindowStream]):
    """Recognizes by decoding windows.

    update_ms: how much new audio makes a partial due. n_early: so many partials an interval in a
    segment's first second. n_held_back: the last words of a hypothesis that no agreement makes
    stable. level: tells what of a stream is silence. reads_falls: decode where the voice falls too:
    three in five of these decodes are in vain, so it is for a model that takes little time.
    reads_words_apart: no words are wanted; ask what they say of the end behind the voice.

    Raises: AudioError if update_ms is outside 20..10000.
    """

    def __init__(
        self,
        decoder: WindowDecoder,
        *,
        update_ms: float,
        n_early: int = 1,
        n_held_back: int = 1,
        reads_falls: bool = False,
        reads_words_apart: bool = False,
        level: Callable[[], SpeechLevel] = SpeechLevel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 20.0 <= update_ms <= 10_000.0:
            raise AudioError(f"expected update_ms of 20 to 10000, found {update_ms}")
        super().__init__(decoder.languages)
        self._decoder = decoder
        self._n_update = samples_in(update_ms, RECOGNIZER_HZ)
        self._n_early_update = samples_in(update_ms / n_early, RECOGNIZER_HZ)
        self._update_s = update_ms / 1000.0
        self._n_held_back = n_held_back
        self._reads_falls = reads_falls
        self._reads_words_apart = reads_words_apart
        self._level = level
        self._clock = clock
        self._busy_s = 0.0  # decoding without a break
        self._rest_until_s = float("-inf")

    def close(self, stream_id: str) -> None:
        super().close(stream_id)
        self._decoder.forget(stream_id)

    def has_work(self) -> bool:
        """Also true while a due stream waits BATCH_WAIT_S for others to join it."""
        return any(s.has_waiting or self._is_due(s) for s in self._streams.values())

    def step(self) -> list[Event]:
        """Answers what is ready, else decodes a batch: no answer waits for another's decode."""
        events: list[Event] = []
        now = self._clock()
        due: list[WindowStream] = []
        for stream in self._streams.values():
            stream.absorb()
            while self._answer_without_decoding(stream, events):
                stream.absorb()
            if not self._is_due(stream):
                stream.due_since_s = None
                continue
            stream.due_since_s = now if stream.due_since_s is None else stream.due_since_s
            due.append(stream)
        if not due:
            self._busy_s = 0.0
        elif not events and self._is_time(due, now):
            # Who asked for an answer comes first, then who has waited longest or has most to hear;
            # words are read behind the voice when nobody else waits.
            waits = {s.stream_id: self._again(s) is Again.WORDS for s in due}
            due.sort(key=lambda s: (
                s.request is None, waits[s.stream_id], s.due_since_s, -s.n_undecoded
            ))  # fmt: skip
            n_batch, n_first = self._decoder.max_batch, list(waits.values()).count(False)
            events.extend(self._decode(due[:n_batch]))
            if n_first:
                self._rest_from_partials(self._clock() - now, is_last=n_first <= n_batch)
        return events

    def _rest_from_partials(self, spent_s: float, *, is_last: bool) -> None:
        """A slow model rests from partials as long as it worked: finals are to find it free."""
        self._busy_s += spent_s
        if is_last or self._busy_s > self._update_s:
            if self._busy_s > self._update_s / 2:
                self._rest_until_s = self._clock() + self._busy_s
            self._busy_s = 0.0

    def _new_stream(self, stream_id: str, options: RecognizerOptions) -> WindowStream:
        return WindowStream(stream_id, options, self._level(), self._n_held_back)

    def _is_time(self, due: list[WindowStream], now: float) -> bool:
        waited_s = now - min(s.due_since_s for s in due if s.due_since_s is not None)
        everybody = len(due) == len(self._streams) or len(due) >= self._decoder.max_batch
        return everybody or waited_s >= BATCH_WAIT_S

    def _is_due(self, stream: WindowStream) -> bool:
        segment = stream.segment
        if stream.request is not None or segment.is_full:
            return True
        if self._clock() < self._rest_until_s or stream.is_silent:
            return False
        is_interval = stream.n_undecoded >= self._n_interval(segment)
        is_new = is_interval and not stream.level.is_quiet_since(segment.decoded_to)
        return is_new or self._is_fall(stream) or self._again(stream) is not None

    def _is_fall(self, stream: WindowStream) -> bool:
        """Whether the voice has fallen since a pause was last decoded: one may have begun."""
        return self._reads_falls and stream.level.has_fallen_since(stream.segment.paused_to)

    def _again(self, stream: WindowStream) -> Again | None:
        """Return what of a pause that was judged is due for another judgement."""
        segment, early = stream.segment, stream.segment.early
        if early is None or early.p_voice is None or stream.request is not None or segment.is_full:
            return None
        if not stream.level.is_quiet_since(early.position):
            return None
        if self._reads_words_apart and Again.WORDS not in early.read_again:
            # Of a fall that may be none only where there is time.
            return Again.WORDS if early.is_told or not self._is_shared else None
        has_lasted = early.is_told and segment.end - early.position >= READ_AGAIN
        return Again.VOICE if has_lasted and Again.VOICE not in early.read_again else None

    @property
    def _is_shared(self) -> bool:
        return len(self._streams) >= MANY_STREAMS

    def _answer_without_decoding(self, stream: WindowStream, events: list[Event]) -> bool:
        """Answers a request for which all is known: nothing was said, or nothing new."""
        segment, request = stream.segment, stream.request
        if request is None:
            return False
        early = segment.early
        if early is not None and stream.level.is_quiet_since(early.position):
            words = early.words
        elif segment.agreement.committed or segment.agreement.tail:
            return False
        elif len(segment.window) < SHORTEST_WINDOW or stream.is_silent:
            words = ()
        else:
            return False
        self._answer(stream, request, words, events)
        return True

    def _answer(
        self,
        stream: WindowStream,
        request: Flush | Finalize,
        words: tuple[Word, ...],
        events: list[Event],
    ) -> None:
        stream.request = None
        if isinstance(request, Finalize):
            events.append(Transcript(stream.stream_id, stream.n_segment, words))
            stream.open_segment()
        else:
            early = stream.segment.early
            p_voice = early.log_odds if early is not None else None
            if early is not None:
                stream.segment.early = replace(early, is_told=True)
            events.append(_partial(stream, is_flushed=True, p_voice=p_voice))

    def _decode(self, batch: list[WindowStream]) -> list[Event]:
        ends = [self._decode_end(stream) for stream in batch]
        requests = [self._request(s, end) for s, end in zip(batch, ends, strict=True)]
        events: list[Event] = []
        try:
            results: list[DecodedWindow | Exception] = list(self._decoder.decode(requests))
        except Exception as error:
            # One stream's fault must not take the others of its batch with it.
            results = [error] if len(batch) == 1 else [self._alone(r) for r in requests]
        for stream, end, result in zip(batch, ends, results, strict=True):
            if isinstance(result, Exception):
                self.close(stream.stream_id)
                events.append(failed(stream.stream_id, result))
                continue
            # Words that are read in part stay first of those: a decoder keeps few sounds, and of
            # more that have all been begun none would ever be read to its end.
            if not result.has_more:
                stream.due_since_s = None
            self._apply(stream, end, result, events)
        return events

    def _alone(self, request: DecodeRequest) -> DecodedWindow | Exception:
        try:
            return self._decoder.decode([request])[0]
        except Exception as error:
            return error

    def _decode_end(self, stream: WindowStream) -> int:
        """Return where this decode ends: all there is for a request, else a whole update
        interval.
        """
        segment = stream.segment
        again = self._again(stream)
        if again is Again.WORDS and segment.early is not None:
            return segment.early.position  # what is encoded already
        is_whole = stream.request is not None or segment.is_full or self._is_fall(stream)
        if is_whole or again is Again.VOICE:
            return min(segment.end, segment.window_start + segment.n_longest)
        return segment.end - (segment.end - segment.start) % self._n_interval(segment)

    def _n_interval(self, segment: Segment) -> int:
        is_early = segment.end - segment.start <= EARLY
        return self._n_early_update if is_early else self._n_update

    def _request(self, stream: WindowStream, end: int) -> DecodeRequest:
        segment = stream.segment
        samples = segment.window[: end - segment.window_start]
        is_long = 1000.0 * len(samples) / RECOGNIZER_HZ >= SENTENCE_CUT_MS
        earlier = tokens_of(segment.agreement.left_window)
        named = ", ".join(segment.options.hotwords)
        hotwords = self._decoder.encode_text(f" {named}") if named else ()
        prompt = (*hotwords[:MAX_PROMPT_TOKENS], *earlier[-MAX_PROMPT_TOKENS:])
        is_paused = stream.request is not None or self._is_fall(stream)
        again = self._again(stream)
        return DecodeRequest(
            samples=samples,
            language=segment.options.language,
            prompt=prompt,
            prefix=segment.agreement.prefix,
            with_times=is_long or segment.is_full or segment.is_crowded or is_paused,
            hints=segment.hints,
            guess=tuple(tokens_of(segment.agreement.tail)),
            is_paused=isinstance(stream.request, Flush)
            or self._is_fall(stream)
            or again is not None,
            voice_alone=again is Again.VOICE,
            end_by_words=again is Again.WORDS,
            is_beginning=end - segment.start <= BEGINNING,
            n_digits=stream.options.n_digits if is_paused and not segment.left else 0,
            is_shared=self._is_shared,
            stream_id=stream.stream_id,
        )

    def _apply(
        self, stream: WindowStream, end: int, result: DecodedWindow, events: list[Event]
    ) -> None:
        segment = stream.segment
        if result.for_agent is not None:
            segment.for_agent = result.for_agent
        if (again := self._again(stream)) is not None and segment.early is not None:
            if result.has_more:
                return
            early = segment.early = segment.early.judged_again(again, result)
            if early.is_told:
                events.append(_partial(stream, is_flushed=False, p_voice=early.log_odds))
            return
        agreement = segment.agreement
        if result.is_anew:
            agreement.begin_anew()
        spoken = (*agreement.prefix, *result.tail)
        words = _timed(spoken, result, segment.window_start)
        is_cut_short = len(tokens_of(spoken)) >= MAX_TOKENS  # there may be more words than it says
        segment.decoded_to = end
        n_known = len(agreement.committed) + len(agreement.tail)
        is_between = stream.request is None and (end - segment.start) % self._n_update != 0
        if result.is_sure and not (is_between and not segment.is_full):
            agreement.observe(result.tail)
        else:
            agreement.accept(result.tail, 0)
        request, is_fall = stream.request, self._is_fall(stream)
        if request is not None or is_fall:
            segment.paused_to = end  # also where its text breaks off: read again, it would again
        is_whole = end == segment.end and not is_cut_short
        if is_whole and (request is not None or is_fall):
            said = (*segment.left, *words)
            segment.early = EarlyFinal(end, said, result.p_voice, by_words=result.by_words)
        if is_whole and request is not None:
            self._answer(stream, request, (*segment.left, *words), events)
            if isinstance(request, Finalize):
                return
        elif n_known or agreement.committed or agreement.tail or result.for_agent is not None:
            events.append(_partial(stream, is_flushed=False))
        if len(words) == len(spoken):
            self._cut_window(segment, end, words, is_cut_short)

    def _cut_window(
        self, segment: Segment, end: int, words: tuple[Word, ...], is_cut_short: bool
    ) -> None:
        """Drops what is certain from the window's front once the window is long or crowded."""
        agreement = segment.agreement
        is_full, is_crowded = segment.is_full, segment.is_crowded
        n_window = end - segment.window_start
        window_ms = 1000.0 * n_window / RECOGNIZER_HZ
        if window_ms < SENTENCE_CUT_MS and not (is_full or is_crowded):
            return
        start_ms = 1000.0 * segment.window_start / RECOGNIZER_HZ
        n_certain = len(agreement.prefix)
        ends_ms = [word.end_ms - start_ms for word in words]
        texts = [word.text for word in words[:n_certain]]
        cut = window_cut(texts, ends_ms[:n_certain], window_ms, is_crowded=is_crowded)
        if cut is not None:
            n_left, n_samples = cut.n_words, samples_in(cut.at_ms, RECOGNIZER_HZ)
        elif is_cut_short:
            # The times of text that breaks off are not to be cut by: decode less sound again.
            segment.n_longest = max(n_window // 2, min(self._n_update, NEVER_CROWDED))
            return
        elif is_full:
            # No two hypotheses agreed on it: take all but the last word at its own word.
            n_left = max(n_certain, len(words) - 1)
            agreement.accept(agreement.tail, n_left - n_certain)
            n_samples = samples_in(ends_ms[n_left - 1], RECOGNIZER_HZ) if n_left else 0
            n_samples = max(n_samples, n_window - KEPT_SILENCE) if n_left == 0 else n_samples
        else:
            return
        if is_full:
            # A full window must take something new, but lose no word that is still to come.
            n_samples = max(n_samples, SHORTEST_WINDOW)
        segment.left.extend(words[:n_left])
        agreement.leave_window(n_left)
        segment.cut(n_samples)


def _timed(
    spoken: Sequence[HypothesisWord], result: DecodedWindow, window_start: int
) -> tuple[Word, ...]:
    """Words with times in ms from the stream's start; empty if the decode had no times."""
    start_ms = 1000.0 * window_start / RECOGNIZER_HZ
    return tuple(
        Word(word.text, start_ms + span[0], start_ms + span[1])
        for word, span in zip(spoken, result.spans_ms, strict=False)
    )


def _partial(stream: WindowStream, *, is_flushed: bool, p_voice: float | None = None) -> Partial:
    agreement = stream.segment.agreement
    stable = tuple(word.text for word in agreement.committed)
    unstable = tuple(word.text for word in agreement.tail)
    return Partial(
        stream.stream_id, stream.n_segment, stable, unstable, is_flushed, p_voice,
        for_agent=stream.segment.for_agent,
    )  # fmt: skip
