"""The embedded voice: audio at once, exact words, clean edges, streams that do not meet."""

import numpy as np
import pytest

from tests.stepping import drain

pytest.importorskip("espeakng_loader", reason="the embedded extra is not installed")

from audio.stream import Speech, SpeechEnd, VoiceOptions
from audio.tts.espeak import LANGUAGES, EspeakVoice
from audio.tts.reply_voice import STOCK_VOICES
from voiceloop.models.catalog import ESPEAK

REPLY = "Sure, one large latte. That comes to $7.50, is that right? We open at 8:30 a.m. today!"


@pytest.fixture
def voice():
    return EspeakVoice()


def run(voice):
    events = drain(voice)
    return events


def speak(model, *deltas, stream_id="s", **options):
    """(samples, words, end) of one stream that is fed the deltas."""
    model.open(stream_id, VoiceOptions(**options))
    for delta in deltas:
        model.feed(stream_id, delta)
    model.finish(stream_id)
    *speech, end = run(model)
    samples = np.concatenate([e.samples for e in speech] or [np.zeros(0, np.int16)])
    return samples, [w for e in speech for w in e.words], end


def test_the_first_clause_is_heard_before_the_text_has_ended(voice):
    voice.open("s", VoiceOptions())
    voice.feed("s", "Sure, one la")
    events = voice.step()
    assert isinstance(events[0], Speech)
    assert [w.text for e in events for w in e.words] == ["Sure"]
    assert not voice.has_work()


def test_word_times_point_at_sound(voice):
    samples, words, _ = speak(voice, "Yes. No.")
    pause = samples[round(words[0].end_ms * 24) + 100 : round(words[1].start_ms * 24) - 100]
    assert len(pause) > 2_400
    assert np.abs(pause).max() < 100
    for word in words:
        assert np.abs(samples[round(word.start_ms * 24) : round(word.end_ms * 24)]).max() > 3_000


def test_deltas_do_not_change_what_is_said(voice):
    whole, words, _ = speak(voice, REPLY)
    cut, cut_words, _ = speak(voice, *REPLY)
    # espeak's flutter runs on from clause to clause: the same words, not the same samples.
    assert len(cut) == pytest.approx(len(whole), rel=0.01)
    assert [(w.text, w.text_end) for w in cut_words] == [(w.text, w.text_end) for w in words]


def test_leading_silence_is_at_most_10_ms_and_no_silence_trails(voice):
    for text in ("Sure.", "Would you like more?", "A latte, please."):
        samples, _, _ = speak(voice, text)
        audible = np.flatnonzero(np.abs(samples) > 184)  # -45 dBFS
        assert audible[0] <= 240
        assert len(samples) - audible[-1] <= 480


def test_streams_are_served_in_turn_and_do_not_mix(voice):
    _, words, _ = speak(voice, REPLY, stream_id="alone")
    for stream_id in ("a", "b"):
        voice.open(stream_id, VoiceOptions(voice="en-us" if stream_id == "b" else ""))
        voice.feed(stream_id, REPLY)
        voice.finish(stream_id)
    first = voice.step()
    assert {e.stream_id for e in first} == {"a", "b"}
    voice.close("b")
    rest = run(voice)
    assert {e.stream_id for e in rest} == {"a"}
    of_a = [e for e in first + rest if e.stream_id == "a"]
    assert [w.text for e in of_a[:-1] for w in e.words] == [w.text for w in words]
    assert of_a[-1] == SpeechEnd("a", sum(len(e.samples) for e in of_a[:-1]))


def test_flush_speaks_what_is_held_back(voice):
    voice.open("s", VoiceOptions())
    voice.feed("s", "We have some fresh ")
    assert voice.step() == []
    voice.flush("s")
    assert [w.text for e in voice.step() for w in e.words] == ["We", "have", "some", "fresh"]


def test_speed_shortens_speech_and_voices_differ(voice):
    normal, _, _ = speak(voice, REPLY)
    fast, _, _ = speak(voice, REPLY, speed=1.5)
    other, _, _ = speak(voice, REPLY, voice="en-us")
    assert 0.55 < len(fast) / len(normal) < 0.8
    assert normal[:4_000].tolist() != other[:4_000].tolist()


def test_every_stock_voice_is_spoken(voice):
    assert set(voice.voices) >= STOCK_VOICES


def test_every_language_of_the_catalog_is_one_that_espeak_speaks(voice):
    assert set(ESPEAK.voices) - {"default"} <= set(voice.voices)
    assert set(LANGUAGES) <= set(ESPEAK.voices)
    for language in LANGUAGES:
        samples, words, _ = speak(voice, "A 2.", stream_id=language, voice=language)
        assert len(words) == 2 and np.abs(samples).max() > 1_000, language


def test_another_language_reads_its_own_numbers_each_as_one_word(voice):
    text = "Das kostet 42 Euro, f\u00fcr \u00fcber 3,50 Mark."
    _, words, _ = speak(voice, text, voice="de")
    spoken = "Das kostet 42 Euro f\u00fcr \u00fcber 3,50 Mark".split()
    assert [word.text for word in words] == spoken
    assert [text[: word.text_end].split()[-1].strip(",.") for word in words] == spoken
    assert all(word.start_ms < word.end_ms for word in words)
    _, english, _ = speak(voice, "It is 42.", voice="en-us")
    assert [word.text for word in english] == ["It", "is", "forty", "two"]
