"""The streaming policy of window decoders on a scripted decoder with a virtual clock."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.asr.local_agreement import HypothesisWord
from audio.asr.window_decoder import MAX_TOKENS, DecodedWindow, DecodeRequest
from audio.asr.window_recognizer import MANY_STREAMS, WindowRecognizer
from audio.end_in_states import joined
from audio.errors import AudioError, UnknownStream
from audio.stream import Partial, RecognizerOptions, StreamFailed, Transcript
from tests.hand_clock import HandClock
from tests.stepping import drain
from tests.tables import each_row

HZ = 16_000
SCRIPT = "I would like to book a table for four tomorrow at seven. My name is Smith please".split()
WORD_SAMPLES = HZ // 2  # the scripted caller says two words a second


class ScriptedDecoder:
    """Hears the script's words as their samples fill the window; ids are in the samples.

    Word i of the script is WORD_SAMPLES of the value 1000 + i, so the window itself says which
    words are in it. The last word is misheard until all of it is there.
    """

    languages = ("en", "de")
    max_batch = 16

    def __init__(self, clock=None, cost_s=0.0):
        self.batches = []
        self.clock = clock
        self.cost_s = cost_s
        self.fail_on = None
        self.judges_sounds = False
        self.says_anew = ()
        self.by_words = None
        self.forgotten = []

    def forget(self, stream_id):
        self.forgotten.append(stream_id)

    def encode_text(self, text):
        return tuple(text.encode())

    def decode(self, requests):
        self.batches.append(list(requests))
        if self.clock is not None:
            self.clock.now_s += self.cost_s
        for request in requests:
            if self.fail_on is not None and (request.samples == self.fail_on).any():
                raise RuntimeError("CUDA error: out of memory")
        return [self._decode(request) for request in requests]

    def _decode(self, request):
        if self.says_anew:
            return DecodedWindow(
                self.says_anew, ((0.0, 100.0),) * len(self.says_anew), is_anew=True
            )
        ids, starts, counts = np.unique(request.samples, return_index=True, return_counts=True)
        heard, spans = [], []
        for value, start, n in sorted(zip(ids, starts, counts, strict=True), key=lambda x: x[1]):
            if not 1000 <= value < 2000 or n < 1600:
                continue
            word = SCRIPT[(value - 1000) % len(SCRIPT)]
            text = word if n >= WORD_SAMPLES * 0.9 else word[:1] + "?"
            heard.append(HypothesisWord(text, (int(value),)))
            spans.append((start / 16, (start + n) / 16))
        forced = request.prefix
        assert [w.text for w in heard[: len(forced)]] == [w.text for w in forced]
        return DecodedWindow(
            tuple(heard[len(forced) :]),
            tuple(spans) if request.with_times else (),
            p_voice=len(heard) / 4 if request.is_paused else None,
            by_words=None if request.voice_alone else self.by_words,
            for_agent=len(heard) / 8 if request.is_beginning and self.judges_sounds else None,
        )


def said(n_words, first=0):
    return np.repeat(np.arange(1000 + first, 1000 + first + n_words), WORD_SAMPLES).astype(np.int16)


def silence(seconds):
    return np.zeros(round(seconds * HZ), np.int16)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def decoder():
    return ScriptedDecoder()


@pytest.fixture
def recognizer(decoder, clock):
    return WindowRecognizer(decoder, clock=clock, update_ms=250.0)


def run(recognizer, stream_id, samples, chunk=4_000):
    events = []
    for i in range(0, len(samples), chunk):
        recognizer.feed(stream_id, samples[i : i + chunk])
        events.extend(recognizer.step())
    return events


def test_partials_grow_and_never_retract_a_stable_word(recognizer):
    recognizer.open("a", RecognizerOptions())
    partials = run(recognizer, "a", said(12))
    assert len(partials) > 10
    stable = ()
    for partial in partials:
        assert partial.stable_words[: len(stable)] == stable
        stable = partial.stable_words
    assert list(stable) == SCRIPT[: len(stable)]
    assert len(stable) >= 9
    assert not any(word.endswith("?") for word in stable)


def test_transcript_holds_every_word_with_its_time(recognizer):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(6))
    recognizer.finalize("a")
    (transcript,) = drain(recognizer)
    assert isinstance(transcript, Transcript)
    assert transcript.text == " ".join(SCRIPT[:6])
    assert [(w.start_ms, w.end_ms) for w in transcript.words] == [
        (500.0 * i, 500.0 * (i + 1)) for i in range(6)
    ]


def test_committed_words_are_forced_as_prefix(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(8))
    assert len(decoder.batches[-1][0].prefix) >= 5


def test_flush_answers_with_the_fullest_hypothesis_and_leaves_the_segment_open(recognizer):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(3))
    recognizer.flush("a")
    flushed = drain(recognizer)[-1]
    assert isinstance(flushed, Partial) and flushed.flushed and flushed.segment == 0
    assert [*flushed.stable_words, *flushed.unstable_words] == SCRIPT[:3]
    run(recognizer, "a", said(2, first=3))
    recognizer.finalize("a")
    assert drain(recognizer)[-1].text == " ".join(SCRIPT[:5])


def test_the_answer_to_a_flush_tells_of_the_voice_and_again_while_silence_lasts(
    recognizer, decoder
):
    recognizer.open("a", RecognizerOptions())
    assert all(partial.p_voice is None for partial in run(recognizer, "a", said(3)))
    recognizer.flush("a")
    assert drain(recognizer)[-1].p_voice == 0.75
    run(recognizer, "a", silence(0.2))
    n_decodes = len(decoder.batches)
    recognizer.flush("a")
    assert drain(recognizer)[-1].p_voice == 0.75
    assert len(decoder.batches) == n_decodes
    run(recognizer, "a", said(1, first=3))
    recognizer.flush("a")
    assert drain(recognizer)[-1].p_voice == 1.0


def test_a_young_sound_is_told_to_be_for_the_agent_or_not_and_no_later_decode_changes_that(
    recognizer, decoder
):
    decoder.judges_sounds = True
    recognizer.open("a", RecognizerOptions())
    told = [partial.for_agent for partial in run(recognizer, "a", said(6))]
    assert told[:2] == [0.125, 0.125] and set(told[5:]) == {told[-1]} == {0.375}
    recognizer.finalize("a")
    drain(recognizer)
    (first, *_) = run(recognizer, "a", said(1))
    assert first.for_agent == 0.125  # of the next segment anew


def test_a_sound_without_words_is_told_of_only_where_it_is_judged(recognizer, decoder):
    hum = np.full(4_000, 500, np.int16)
    recognizer.open("a", RecognizerOptions())
    assert not run(recognizer, "a", hum)
    recognizer.close("a")
    decoder.judges_sounds = True
    recognizer.open("b", RecognizerOptions())
    (partial,) = run(recognizer, "b", hum)
    assert (partial.unstable_words, partial.flushed, partial.for_agent) == ((), False, 0.0)


def test_what_the_words_say_of_the_end_stays_beside_a_second_reading_of_the_voice(
    recognizer, decoder
):
    decoder.by_words = 0.5
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(3))
    run(recognizer, "a", silence(0.5))
    recognizer.flush("a")
    (first,) = drain(recognizer)
    (again,) = run(recognizer, "a", silence(0.3), 320)
    assert decoder.batches[-1][0].voice_alone
    assert first.p_voice == again.p_voice == joined(0.75, 0.5)


@pytest.fixture
def reader(decoder, clock):
    """One that tells no words, and reads them in two parts."""
    decoder.max_batch, tell = 1, decoder._decode
    more = []

    def read(request):
        if not request.end_by_words:
            return replace(tell(request), tail=(), spans_ms=())
        more.append(len(more) % 2 == 0)
        return DecodedWindow((), has_more=True) if more[-1] else DecodedWindow((), by_words=0.5)

    decoder._decode = read
    return WindowRecognizer(
        decoder, clock=clock, update_ms=10_000.0, reads_falls=True, reads_words_apart=True
    )


def test_a_reader_of_few_has_read_the_words_before_it_is_asked(reader, decoder):
    reader.open("a", RecognizerOptions())
    assert not run(reader, "a", np.concatenate([said(3), silence(0.1)]), 320)
    fallen, *again = (batch[0] for batch in decoder.batches)
    assert [one.end_by_words for one in again] == [True, True] and not again[0].is_shared
    assert all((one.samples == fallen.samples).all() for one in again)  # what is encoded already
    reader.flush("a")
    (told,) = drain(reader)
    assert told.flushed and told.p_voice == joined(0.75, 0.5) and len(decoder.batches) == 3


def test_a_reader_of_many_tells_of_the_voice_at_once_and_of_the_words_when_nobody_waits(
    reader, decoder, clock
):
    decoder.clock, decoder.cost_s = clock, 0.01
    for name in ("a", "b", *map(str, range(MANY_STREAMS - 2))):
        reader.open(name, RecognizerOptions())
    for name, first in (("a", 0), ("b", 4)):
        run(reader, name, np.concatenate([said(3, first), silence(0.06)]), 320)
    assert len(decoder.batches) == 2
    for name in ("a", "b"):
        reader.feed(name, silence(0.02))
        reader.flush(name)
    told = drain(reader)
    assert [(one.stream_id, one.flushed, one.p_voice) for one in told] == [
        ("a", True, 0.75), ("b", True, 0.75),
        ("a", False, joined(0.75, 0.5)), ("b", False, joined(0.75, 0.5)),
    ]  # fmt: skip
    assert decoder.batches[2][0].is_shared
    # What has been begun is read to its end before another is: a decoder keeps few sounds.
    assert [int(batch[0].samples.max()) for batch in decoder.batches[2:]] == [1002] * 2 + [1006] * 2
    (lasting,) = run(reader, "a", silence(1.0), 320)  # once, then the voice once
    assert decoder.batches[-1][0].voice_alone and lasting.p_voice == joined(0.75, 0.5)
    run(reader, "b", said(1, first=3), 320)
    assert len(decoder.batches) == 7  # who goes on is not read


def test_words_that_are_read_in_part_wait_for_another_s_voice(reader, decoder, clock):
    decoder.clock, decoder.cost_s = clock, 0.01
    for name in ("a", "b", *map(str, range(MANY_STREAMS - 2))):
        reader.open(name, RecognizerOptions())
    run(reader, "a", np.concatenate([said(3), silence(0.1)]), 320)
    reader.flush("a")
    (told,) = [*reader.step(), *reader.step()]
    reader.feed("b", np.concatenate([said(3, first=4), silence(0.06)]))
    drain(reader)
    order = [(int(batch[0].samples.max()), batch[0].end_by_words) for batch in decoder.batches]
    assert told.flushed and order == [(1002, False), (1002, True), (1006, False), (1002, True)]


def test_a_voice_is_read_once_more_where_the_silence_lasts(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(3))
    run(recognizer, "a", silence(0.5))
    n_decodes = len(decoder.batches)
    recognizer.flush("a")
    (first,) = drain(recognizer)
    n_decodes += 1
    assert not run(recognizer, "a", silence(0.2), 320) and len(decoder.batches) == n_decodes
    (again,) = run(recognizer, "a", silence(0.1), 320)
    assert decoder.batches[-1][0].voice_alone and len(decoder.batches) == n_decodes + 1
    assert (again.flushed, again.p_voice, first.p_voice) == (False, 0.75, 0.75)
    assert again.unstable_words == first.unstable_words and again.stable_words == first.stable_words
    assert not run(recognizer, "a", silence(2.0), 320)  # once
    recognizer.flush("a")
    assert drain(recognizer)[-1].p_voice == 0.75 and len(decoder.batches) == n_decodes + 1
    run(recognizer, "a", said(1, first=3))
    recognizer.flush("a")
    assert drain(recognizer)[-1].p_voice == 1.0
    assert [one.p_voice for one in run(recognizer, "a", silence(0.3), 320)] == [1.0]
    recognizer.finalize("a")
    assert drain(recognizer)[-1].text == " ".join(SCRIPT[:4])


def test_a_voice_that_goes_on_is_not_read_again(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(3))
    recognizer.flush("a")
    drain(recognizer)
    run(recognizer, "a", silence(0.1))
    run(recognizer, "a", said(2, first=3))
    assert not any(request.voice_alone for batch in decoder.batches for request in batch)


def test_final_after_a_flush_and_silence_needs_no_decode(decoder, clock):
    decoder.clock, decoder.cost_s = clock, 0.150
    recognizer = WindowRecognizer(decoder, clock=clock, update_ms=250.0)
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(4))
    recognizer.flush("a")
    drain(recognizer)
    run(recognizer, "a", silence(0.4), chunk=320)
    n_decodes, decided_at = len(decoder.batches), clock.now_s
    recognizer.finalize("a")
    (transcript,) = recognizer.step()
    assert transcript.text == " ".join(SCRIPT[:4])
    assert len(decoder.batches) == n_decodes
    assert clock.now_s - decided_at <= 0.020  # a decode would cost 150 ms


def test_final_after_a_flush_and_more_speech_is_decoded_again(recognizer):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(4))
    recognizer.flush("a")
    drain(recognizer)
    run(recognizer, "a", said(1, first=4), chunk=320)
    recognizer.finalize("a")
    assert drain(recognizer)[-1].text == " ".join(SCRIPT[:5])


def test_second_flush_in_the_same_silence_needs_no_decode(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(2))
    recognizer.flush("a")
    drain(recognizer)
    n_decodes = len(decoder.batches)
    run(recognizer, "a", silence(1.0))
    recognizer.flush("a")
    (again,) = recognizer.step()
    assert again.flushed
    assert [*again.stable_words, *again.unstable_words] == SCRIPT[:2]
    assert all(request.voice_alone for batch in decoder.batches[n_decodes:] for request in batch)


def test_silence_alone_is_an_empty_transcript_and_never_decoded(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", silence(40.0), chunk=HZ)
    recognizer.finalize("a")
    (transcript,) = drain(recognizer)
    assert transcript.words == ()
    assert decoder.batches == []


def test_what_is_fed_after_finalize_belongs_to_the_next_segment(recognizer):
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", said(2))
    recognizer.finalize("a")
    recognizer.feed("a", said(2, first=2))
    recognizer.finalize("a")
    first, second = (e for e in drain(recognizer) if isinstance(e, Transcript))
    assert (first.segment, first.text) == (0, " ".join(SCRIPT[:2]))
    assert (second.segment, second.text) == (1, " ".join(SCRIPT[2:4]))
    assert second.words[0].start_ms == 1000.0


def test_a_number_that_is_asked_for_is_looked_for_at_once_but_only_in_a_pause(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", said(2))
    recognizer.set_options("a", RecognizerOptions(n_digits=10))
    drain(recognizer)
    recognizer.flush("a")
    drain(recognizer)
    *partials, asked = (batch[0].n_digits for batch in decoder.batches)
    assert asked == 10 and not any(partials)


def test_words_that_are_read_anew_take_the_place_of_stable_ones(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    for word in range(4):
        recognizer.feed("a", said(1, first=word))
        drain(recognizer)
    decoder.says_anew = tuple(HypothesisWord(word, (7,)) for word in ("one", "two"))
    recognizer.flush("a")
    partial = drain(recognizer)[-1]
    assert (*partial.stable_words, *partial.unstable_words) == ("one", "two")
    recognizer.finalize("a")
    (transcript,) = (e for e in drain(recognizer) if isinstance(e, Transcript))
    assert transcript.text == "one two"


def test_options_take_effect_at_the_next_segment(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    recognizer.set_options("a", RecognizerOptions(language="de", hotwords=("Smith",)))
    for _ in range(2):
        recognizer.feed("a", said(2))
        recognizer.finalize("a")
        drain(recognizer)
    requests = [batch[0] for batch in decoder.batches]
    assert requests[0].language == "en" and requests[0].prompt == ()
    assert requests[-1].language == "de" and bytes(requests[-1].prompt) == b" Smith"


def test_long_segment_is_cut_at_sentence_ends_and_loses_no_word(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    script = [SCRIPT[i % len(SCRIPT)] for i in range(80)]
    run(recognizer, "a", said(80))
    recognizer.finalize("a")
    transcript = drain(recognizer)[-1]
    assert [word.text for word in transcript.words] == script
    assert [word.start_ms for word in transcript.words] == [500.0 * i for i in range(80)]
    longest = max(len(request.samples) for batch in decoder.batches for request in batch)
    assert longest <= 16 * HZ
    assert decoder.batches[-1][0].prompt, "what left the window is the decoder's prompt"


def test_a_long_recording_fed_at_once_is_taken_window_by_window(recognizer, decoder):
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", said(100))
    recognizer.finalize("a")
    transcript = drain(recognizer)[-1]
    assert [word.text for word in transcript.words] == [SCRIPT[i % 17] for i in range(100)]
    assert all(len(r.samples) <= 25 * HZ for batch in decoder.batches for r in batch)


class DenseDecoder(ScriptedDecoder):
    """A script that is spelled out by bytes: 25 tokens a word, of which MAX_TOKENS fit."""

    def _decode(self, request):
        whole = super()._decode(DecodeRequest(request.samples, "en", (), (), request.with_times))
        dense = [HypothesisWord(w.text, w.tokens * 25) for w in whole.tail]
        said, n_tokens = [], 0
        for word in dense:
            if n_tokens + len(word.tokens) > MAX_TOKENS:
                said.append(HypothesisWord(word.text[:1], word.tokens[: MAX_TOKENS - n_tokens]))
                break
            said.append(word)
            n_tokens += len(word.tokens)
        forced = request.prefix
        assert sum(len(word.tokens) for word in forced) < MAX_TOKENS, "no room for another word"
        assert [w.text for w in said[: len(forced)]] == [w.text for w in forced]
        return DecodedWindow(tuple(said[len(forced) :]), whole.spans_ms[: len(said)])


@each_row("chunk", [1_600, 4_000, 32_000, 10**7])
@each_row("n_words", [9, 40])
def test_words_that_fill_the_context_cut_the_window_and_none_is_lost(chunk, n_words, clock):
    recognizer = WindowRecognizer(DenseDecoder(), clock=clock, update_ms=250.0)
    recognizer.open("a", RecognizerOptions())
    stable = ()
    for partial in run(recognizer, "a", said(n_words), chunk):
        assert partial.stable_words[: len(stable)] == stable
        stable = partial.stable_words
    recognizer.finalize("a")
    transcript = drain(recognizer)[-1]
    assert [word.text for word in transcript.words] == [SCRIPT[i % 17] for i in range(n_words)]
    edges = [edge for word in transcript.words for edge in (word.start_ms, word.end_ms)]
    assert edges == sorted(edges)


def test_a_flush_of_more_words_than_a_context_answers_with_all_of_them(clock):
    recognizer = WindowRecognizer(DenseDecoder(), clock=clock, update_ms=250.0)
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", said(30))
    recognizer.flush("a")
    (flushed,) = [e for e in drain(recognizer) if e.flushed]
    assert [*flushed.stable_words, *flushed.unstable_words] == [SCRIPT[i % 17] for i in range(30)]


@pytest.mark.parametrize("update_ms", [2_000.0, 10_000.0])
def test_a_crowded_window_is_answered_however_rarely_it_is_decoded(update_ms, clock):
    decoder = DenseDecoder()
    recognizer = WindowRecognizer(decoder, clock=clock, update_ms=update_ms)
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", said(40))
    recognizer.finalize("a")
    events = []
    while recognizer.has_work() and len(decoder.batches) < 100:
        events.extend(recognizer.step())
    assert [w.text for w in events[-1].words] == [SCRIPT[i % 17] for i in range(40)]


def test_streams_due_within_five_milliseconds_share_a_batch(recognizer, decoder, clock):
    for name in "abc":
        recognizer.open(name, RecognizerOptions())
    recognizer.feed("a", said(1))
    assert recognizer.step() == [] and recognizer.has_work()
    clock.now_s += 0.004
    recognizer.feed("b", said(1))
    assert recognizer.step() == []
    clock.now_s += 0.0011
    recognizer.step()
    assert [len(batch) for batch in decoder.batches] == [2]


def test_what_gains_nothing_from_a_batch_is_decoded_one_by_one_and_requests_first(
    recognizer, decoder
):
    decoder.max_batch = 1
    for name in "abcd":
        recognizer.open(name, RecognizerOptions())
    for name in "abc":
        recognizer.feed(name, said(1))
    recognizer.step()  # no other stream is waited for
    assert [len(batch) for batch in decoder.batches] == [1]
    recognizer.flush("c")
    (answer,) = recognizer.step()  # not with its neighbours' partials
    assert answer.stream_id == "c" and answer.flushed
    assert [e.stream_id for e in recognizer.step()] == ["b"] and not recognizer.has_work()
    assert [len(batch) for batch in decoder.batches] == [1, 1, 1]


def test_an_answer_that_needs_no_decode_does_not_wait_for_one(recognizer, decoder):
    decoder.max_batch = 1
    for name in "ab":
        recognizer.open(name, RecognizerOptions())
    recognizer.feed("a", said(1))
    recognizer.flush("a")
    drain(recognizer)
    n_decodes = len(decoder.batches)
    recognizer.finalize("a")
    recognizer.feed("b", said(1))
    recognizer.finalize("b")
    (transcript,) = recognizer.step()
    assert transcript.stream_id == "a" and len(decoder.batches) == n_decodes
    assert [e.stream_id for e in drain(recognizer)] == ["b"]


def test_streams_decoded_one_by_one_rest_together_as_if_they_were_a_batch(decoder, clock):
    decoder.clock, decoder.cost_s, decoder.max_batch = clock, 0.060, 1
    recognizer = WindowRecognizer(decoder, clock=clock, update_ms=250.0)
    for name in "abc":
        recognizer.open(name, RecognizerOptions())
        recognizer.feed(name, said(1))
    drain(recognizer)
    for name in "abc":
        recognizer.feed(name, said(1, first=1))
    clock.now_s += 0.170
    assert recognizer.step() == [] and len(decoder.batches) == 3
    clock.now_s += 0.011
    drain(recognizer)
    assert len(decoder.batches) == 6


def test_a_slow_model_rests_between_partials_but_not_from_a_flush(decoder, clock):
    decoder.clock, decoder.cost_s = clock, 0.400
    recognizer = WindowRecognizer(decoder, clock=clock, update_ms=250.0)
    recognizer.open("a", RecognizerOptions())
    run(recognizer, "a", said(1))
    assert len(decoder.batches) == 1
    clock.now_s += 0.390
    assert not recognizer.has_work() and recognizer.step() == []
    recognizer.flush("a")
    assert recognizer.step()[-1].flushed
    assert len(decoder.batches) == 2
    run(recognizer, "a", said(1, first=1))
    assert len(decoder.batches) == 2
    clock.now_s += 0.401
    recognizer.step()
    assert len(decoder.batches) == 3


def test_a_failing_window_fails_its_stream_alone(recognizer, decoder):
    decoder.fail_on = 1009
    for name, first in (("a", 0), ("b", 9), ("c", 4)):
        recognizer.open(name, RecognizerOptions())
        recognizer.feed(name, said(1, first))
        recognizer.finalize(name)
    events = drain(recognizer)
    failed = [e for e in events if isinstance(e, StreamFailed)]
    assert [(e.stream_id, e.retryable) for e in failed] == [("b", True)]
    finals = {e.stream_id: e.text for e in events if isinstance(e, Transcript)}
    assert finals == {"a": SCRIPT[0], "c": SCRIPT[4]}
    recognizer.close("c")
    assert decoder.forgotten == ["b", "c"]


def test_closing_one_stream_leaves_the_others_output_identical(clock):
    def play(close_b):
        recognizer = WindowRecognizer(ScriptedDecoder(), clock=clock, update_ms=250.0)
        recognizer.open("a", RecognizerOptions())
        recognizer.open("b", RecognizerOptions())
        events = []
        for i in range(16):
            recognizer.feed("a", said(8)[i * 4000 : (i + 1) * 4000])
            if i < 5 or not close_b:
                recognizer.feed("b", said(8, 3)[i * 4000 : (i + 1) * 4000])
            elif i == 5:
                recognizer.close("b")
                recognizer.close("b")
            events += recognizer.step()
        return [e for e in events if e.stream_id == "a"]

    assert play(close_b=True) == play(close_b=False)


@settings(max_examples=10)
@given(data=st.data())
def test_chunking_up_to_one_update_changes_no_event(data):
    samples = said(9)

    def play(cuts):
        recognizer = WindowRecognizer(ScriptedDecoder(), clock=HandClock(), update_ms=250.0)
        recognizer.open("a", RecognizerOptions())
        events, start = [], 0
        for end in [*cuts, len(samples)]:
            recognizer.feed("a", samples[start:end])
            events += drain(recognizer)
            start = end
        recognizer.finalize("a")
        return events + drain(recognizer)

    cuts, at = [], 0
    while at < len(samples):
        at += data.draw(st.integers(1_000, 4_000))
        cuts.append(min(at, len(samples)))
    events = play(cuts)
    assert events == play(range(4_000, len(samples), 4_000))
    assert events[-1].text == " ".join(SCRIPT[:9])


def test_unknown_stream_and_unknown_language_are_refused(recognizer):
    with pytest.raises(UnknownStream):
        recognizer.feed("nobody", said(1))
    with pytest.raises(AudioError, match="expected a language among en, de, found 'tlh'"):
        recognizer.open("a", RecognizerOptions(language="tlh"))
    recognizer.close("nobody")


def test_more_than_ten_waiting_minutes_are_refused(recognizer):
    recognizer.open("a", RecognizerOptions())
    recognizer.feed("a", silence(600.0))
    with pytest.raises(AudioError, match="waiting to be heard"):
        recognizer.feed("a", silence(0.1))


def test_a_segment_s_first_words_come_at_more_partials_and_those_commit_none(decoder, clock):
    def heard(n_early):
        recognizer = WindowRecognizer(decoder, clock=clock, update_ms=500.0, n_early=n_early)
        recognizer.open("a", RecognizerOptions())
        return run(recognizer, "a", said(6), chunk=2_000)

    seldom, often = heard(1), heard(2)
    assert [p.unstable_words for p in often[:2]] == [("I"[:1] + "?",), ("I",)]
    assert len([p for p in often if not p.stable_words]) > len(
        [p for p in seldom if not p.stable_words]
    )
    # After the first second, and in what is certain, nothing is different.
    assert [p for p in seldom if p.stable_words] == [p for p in often if p.stable_words]


@pytest.fixture
def prescient(decoder, clock):
    """One that reads falls of the voice, and no partials besides."""
    recognizer = WindowRecognizer(decoder, clock=clock, update_ms=10_000.0, reads_falls=True)
    recognizer.open("a", RecognizerOptions())
    return recognizer


def test_where_the_voice_falls_the_pause_is_read_before_anybody_asks(prescient, decoder):
    assert not run(prescient, "a", said(2), 320)
    (early,) = run(prescient, "a", silence(0.06), 320)
    assert (*early.stable_words, *early.unstable_words) == ("I", "would") and not early.flushed
    assert len(decoder.batches) == 1
    prescient.flush("a")
    (answer,) = drain(prescient)
    assert answer.flushed and answer.p_voice == 0.5 and len(decoder.batches) == 1
    prescient.finalize("a")
    assert drain(prescient)[-1].text == "I would" and len(decoder.batches) == 1


def test_each_fall_is_read_once_and_what_is_said_after_it_is_no_secret(prescient, decoder):
    run(prescient, "a", np.concatenate([said(2), silence(0.5)]), 320)
    assert len(decoder.batches) == 1
    run(prescient, "a", np.concatenate([said(1, first=2), silence(0.06)]), 320)
    assert len(decoder.batches) == 2
    run(prescient, "a", said(1, first=3), 320)
    prescient.flush("a")
    answer = drain(prescient)[-1]
    assert answer.flushed and answer.p_voice == 1.0 and len(decoder.batches) == 3


def test_a_fall_whose_text_breaks_off_is_not_read_again_at_each_step(prescient, decoder):
    hear = decoder._decode
    endless = HypothesisWord("oh", (7,) * MAX_TOKENS)
    decoder._decode = lambda request: replace(hear(request), tail=(endless,))
    run(prescient, "a", np.concatenate([said(1), silence(0.06)]), 320)
    assert len(decoder.batches) == 1
    assert not prescient.has_work()
    prescient.step()
    assert len(decoder.batches) == 1
    decoder._decode = hear
    run(prescient, "a", np.concatenate([said(1, first=1)[:3_200], silence(0.06)]), 320)
    assert len(decoder.batches) == 2


def test_no_fall_is_read_in_silence_or_by_a_model_that_takes_its_time(
    recognizer, prescient, decoder
):
    run(prescient, "a", silence(2.0), 320)
    assert not decoder.batches
    recognizer.open("b", RecognizerOptions())
    run(recognizer, "b", np.concatenate([said(1)[:3_000], silence(0.06)]), 320)
    assert not decoder.batches
