"""The embedded recognizer: partials firm up, segments follow each other, a session's words help.

The speech is espeak-ng's, so that the tests need no data; what is held is behaviour, not accuracy.
"""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("pocketsphinx", reason="the embedded extra is not installed")
pytest.importorskip("espeakng_loader", reason="the embedded extra is not installed")

from audio.asr import pocketsphinx
from audio.asr.pocketsphinx import PocketsphinxRecognizer
from audio.errors import AudioError, UnknownStream
from audio.resample import Resampler
from audio.stream import Partial, RecognizerOptions, Speech, Transcript, VoiceOptions
from audio.tts.espeak import EspeakVoice

ORDER = "what time do you open friday"


@pytest.fixture(scope="session")
def recognizer_model():
    return PocketsphinxRecognizer()


@pytest.fixture
def recognizer(recognizer_model):
    yield recognizer_model
    for stream_id in ("s", "a", "b"):
        recognizer_model.close(stream_id)


@pytest.fixture(scope="session")
def say():
    """say(text) -> int16 at 16 kHz with quiet room noise, 200 ms before and 300 ms after."""
    voice = EspeakVoice()
    cache = {}

    def speak(text):
        if text not in cache:
            voice.open(text, VoiceOptions(voice="en-us"))
            voice.feed(text, text)
            voice.finish(text)
            events = []
            while voice.has_work():
                events += voice.step()
            speech = np.concatenate([e.samples for e in events if isinstance(e, Speech)])
            resampler = Resampler(24_000, 16_000)
            speech = np.concatenate([resampler.push(speech), resampler.flush()])
            noise = np.random.default_rng(0).normal(0, 30, len(speech) + 8_000)
            noise[3_200 : 3_200 + len(speech)] += speech * 0.5
            cache[text] = noise.astype(np.int16)
        return cache[text]

    return speak


def feed(recognizer, stream_id, samples, chunk=640):
    events = []
    for start in range(0, len(samples), chunk):
        recognizer.feed(stream_id, samples[start : start + chunk])
        events += recognizer.step()
    return events + drain(recognizer)


def drain(recognizer):
    events = []
    while recognizer.has_work():
        events += recognizer.step()
    return events


def test_partials_firm_up_and_agree_with_the_transcript(recognizer, say):
    recognizer.open("s", RecognizerOptions())
    partials = feed(recognizer, "s", say(ORDER))
    recognizer.finalize("s")
    (transcript,) = drain(recognizer)
    assert isinstance(transcript, Transcript)
    assert {"what", "time", "open", "friday"} <= set(transcript.text.split())
    assert all(isinstance(p, Partial) and not p.flushed for p in partials)
    assert len(partials) > 3
    words = tuple(word.text for word in transcript.words)
    assert len(partials[-1].stable_words) >= 3
    assert partials[-1].stable_words == words[: len(partials[-1].stable_words)]
    assert len(partials[-1].unstable_words) >= 1


def test_word_times_are_in_the_streams_clock_over_segments(recognizer, say):
    recognizer.open("s", RecognizerOptions())
    first, second = say("yes please"), say("thank you")
    for samples in (first, second):
        recognizer.feed("s", samples)
        recognizer.finalize("s")
    transcripts = [e for e in drain(recognizer) if isinstance(e, Transcript)]
    assert [t.segment for t in transcripts] == [0, 1]
    for transcript, start, end in (
        (transcripts[0], 0, len(first)),
        (transcripts[1], len(first), len(first) + len(second)),
    ):
        times = [t for w in transcript.words for t in (w.start_ms, w.end_ms)]
        assert times == sorted(times)
        assert start / 16 <= times[0] <= times[-1] <= end / 16


def test_flush_reports_the_last_word_and_does_not_end_the_segment(recognizer, say):
    recognizer.open("s", RecognizerOptions())
    feed(recognizer, "s", say(ORDER)[:-3_000])
    recognizer.flush("s")
    (flushed,) = recognizer.step()
    assert flushed.flushed
    assert "friday" in (flushed.stable_words + flushed.unstable_words)
    feed(recognizer, "s", say("thank you"))
    recognizer.finalize("s")
    (transcript,) = drain(recognizer)
    assert transcript.segment == 0
    assert transcript.words[0].start_ms < 1_000
    assert transcript.text.endswith("thank you")


@settings(max_examples=1)
@given(sizes=st.lists(st.integers(1, 9_000), min_size=1, max_size=8))
@example(sizes=[1])
@example(sizes=[1, 1, 2711])
def test_any_chunking_gives_the_same_transcript(say, sizes):
    recognizer = PocketsphinxRecognizer()
    samples = say(ORDER)

    def transcript(cut):
        recognizer.open("s", RecognizerOptions())
        start = 0
        for size in itertools.cycle(cut):
            if start >= len(samples):
                break
            recognizer.feed("s", samples[start : start + size])
            recognizer.step()
            start += size
        recognizer.finalize("s")
        found = drain(recognizer)[-1]
        recognizer.close("s")
        return found

    assert transcript([*sizes, 640]) == transcript([len(samples)])


def test_streams_together_say_what_each_says_alone_though_one_is_closed(recognizer, say):
    sounds = {"a": say(ORDER), "b": say(ORDER)[4_000:], "c": say(ORDER)[::-1].copy()}

    def transcripts(names, closed=""):
        for name in names:
            recognizer.open(name, RecognizerOptions())
        for at in range(0, max(map(len, sounds.values())), 1_600):
            if closed and at == 8_000:
                recognizer.close(closed)
            for name in names:
                if name != closed or at < 8_000:
                    recognizer.feed(name, sounds[name][at : at + 1_600])
            recognizer.step()
        names = [name for name in names if name != closed]
        for name in names:
            recognizer.finalize(name)
        finals = {e.stream_id: e for e in drain(recognizer) if isinstance(e, Transcript)}
        for name in names:
            recognizer.close(name)
        return finals

    alone = transcripts("a") | transcripts("b")
    assert transcripts("cab", closed="c") == alone
    assert alone["a"].words


def test_flush_answers_even_before_any_audio(recognizer):
    recognizer.open("s", RecognizerOptions())
    recognizer.flush("s")
    recognizer.finalize("s")
    assert recognizer.step() == [Partial("s", 0, (), (), True), Transcript("s", 0, ())]


def test_a_step_decodes_a_bounded_piece_of_each_stream(recognizer, say):
    for stream_id in ("a", "b"):
        recognizer.open(stream_id, RecognizerOptions())
        recognizer.feed(stream_id, say("yes please"))
        recognizer.finalize(stream_id)
    n_steps, done = 0, []
    while recognizer.has_work():
        done += [e.stream_id for e in recognizer.step() if isinstance(e, Transcript)]
        n_steps += 1
    assert n_steps >= len(say("yes please")) // 1_280
    assert sorted(done) == ["a", "b"]


def test_words_of_the_session_are_recognized(recognizer, say):
    text = "a zorblax please"
    heard = {}
    for hotwords in ((), ("zorblax",)):
        recognizer.open("s", RecognizerOptions(hotwords=hotwords))
        feed(recognizer, "s", say(text))
        recognizer.finalize("s")
        heard[hotwords] = drain(recognizer)[-1].text.split()
        recognizer.close("s")
    assert "zorblax" not in heard[()]
    assert "zorblax" in heard["zorblax",]


def test_options_take_effect_at_the_next_segment(recognizer, say):
    recognizer.open("s", RecognizerOptions())
    feed(recognizer, "s", say("yes please"))
    recognizer.set_options("s", RecognizerOptions(hotwords=("zorblax",)))
    feed(recognizer, "s", say("a zorblax please"))
    recognizer.finalize("s")
    (transcript,) = drain(recognizer)
    assert "zorblax" not in transcript.text.split()
    feed(recognizer, "s", say("a zorblax please"))
    recognizer.finalize("s")
    (transcript,) = [event for event in drain(recognizer) if isinstance(event, Transcript)]
    assert transcript.segment == 1
    assert "zorblax" in transcript.text.split()


def test_what_is_not_english_or_not_open_is_refused(recognizer):
    with pytest.raises(AudioError, match="found 'de'"):
        recognizer.open("s", RecognizerOptions(language="de"))
    with pytest.raises(UnknownStream):
        recognizer.feed("s", np.zeros(10, np.int16))
    recognizer.close("s")
    recognizer.open("s", RecognizerOptions(language="en-US"))
    with pytest.raises(AudioError, match="in use"):
        recognizer.open("s", RecognizerOptions())


def test_calls_that_open_together_get_their_decoders_one_a_step(recognizer, say, monkeypatch):
    made = []
    build = pocketsphinx.SegmentDecoder
    monkeypatch.setattr(
        pocketsphinx, "SegmentDecoder", lambda *given: made.append(1) or build(*given)
    )
    for stream_id in "ab":
        recognizer.open(stream_id, RecognizerOptions())
        for word in ("latte", "mocha", "scone"):
            recognizer.set_options(stream_id, RecognizerOptions(hotwords=(word,)))
    assert made == []
    for stream_id in "ab":
        recognizer.feed(stream_id, say(ORDER)[:6400])
    recognizer.step()
    assert len(made) == 1
    drain(recognizer)
    assert len(made) == 2


def test_a_caller_who_changes_options_without_end_keeps_nobody_from_a_decoder(recognizer, say):
    samples = say(ORDER)
    recognizer.open("a", RecognizerOptions())
    feed(recognizer, "a", samples[:1600])
    heard = []
    for turn in range(14):  # each time another decoder for "a", which is first in every step
        recognizer.set_options("a", RecognizerOptions(hotwords=(f"word {turn}",)))
        recognizer.finalize("a")
        recognizer.feed("a", samples[:1200])  # one step, and the segment is over
        if turn == 2:  # the other calls while decoders are being built
            recognizer.open("b", RecognizerOptions())
        if turn >= 2:
            recognizer.feed("b", samples[(turn - 2) * 1600 : (turn - 1) * 1600])
        heard += recognizer.step()
    assert any(isinstance(event, Partial) and event.stream_id == "b" for event in heard)
