"""The scores of a voice: its features, what is read back, and what they need."""

from types import SimpleNamespace

import numpy as np
import pytest

from audio.errors import AudioError
from audio.frames import RECOGNIZER_HZ
from audio.stream import Speech, SpeechEnd, Transcript, Word
from benchmarks import speech_bench
from benchmarks.harness import voice_score
from benchmarks.harness.voice_score import HOP, SENTENCES, WINDOW, Dnsmos, read_back_wer, speak


class ScriptedRecognizer:
    """Hears one text after the other, whatever is fed."""

    def __init__(self, texts):
        self._texts = list(texts)
        self._is_due = False

    def open(self, stream_id, options): ...

    def feed(self, stream_id, samples): ...

    def close(self, stream_id): ...

    def finalize(self, stream_id):
        self._is_due = True

    def has_work(self):
        return self._is_due

    def step(self):
        self._is_due = False
        words = tuple(Word(word, 0.0, 1.0) for word in self._texts.pop(0).split())
        return [Transcript("turn", 0, words)]


def test_what_is_read_back_is_compared_as_it_is_spoken():
    clips = [np.zeros(160, np.int16)] * len(SENTENCES)
    assert read_back_wer(clips, ScriptedRecognizer(SENTENCES)) == 0.0
    spelled = [text.replace("$4.50", "four dollars and fifty cents") for text in SENTENCES]
    assert read_back_wer(clips, ScriptedRecognizer(spelled)) == 0.0
    assert read_back_wer(clips, ScriptedRecognizer([""] * len(SENTENCES))) == 1.0


def test_a_voice_is_heard_at_the_recognizers_rate():
    class Voice:
        is_due = True

        def open(self, stream_id, options): ...

        def feed(self, stream_id, text): ...

        def finish(self, stream_id): ...

        def has_work(self):
            return self.is_due

        def step(self):
            self.is_due = False
            speech = Speech("scored", np.ones(24_000, np.int16), 24_000, ())
            return [speech, SpeechEnd("scored", 24_000)]

    assert len(speak(Voice(), "Hello.")) == RECOGNIZER_HZ


def test_a_tone_stands_out_in_the_band_it_is_in(monkeypatch):
    mark = object.__new__(Dnsmos)
    mark._filters = voice_score._mel_filters()
    time_s = np.arange(WINDOW - HOP) / RECOGNIZER_HZ
    low, high = (mark._features(np.sin(2 * np.pi * hz * time_s)) for hz in (300.0, 5_000.0))
    assert low.shape == high.shape == (900, 120)
    assert low[450].argmax() < 30 < 90 < high[450].argmax()
    assert low.max() == pytest.approx(1.0)
    assert low.min() >= -1.0


def test_without_its_package_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(voice_score, "find_spec", lambda name: None)
    with pytest.raises(AudioError, match="pip install --no-deps speechmos"):
        Dnsmos()


def test_each_recognizer_that_reads_back_has_its_own_figure(monkeypatch, tmp_path):
    heard = {"deaf": [""] * len(SENTENCES), "good": SENTENCES}
    monkeypatch.setattr(speech_bench, "Dnsmos", lambda: lambda clip: 4.0)
    monkeypatch.setattr(speech_bench, "speak", lambda voice, text: np.zeros(160, np.int16))
    monkeypatch.setattr(
        speech_bench, "load", lambda name, *_: (ScriptedRecognizer(heard[name]), False)
    )
    options = SimpleNamespace(score=["deaf", "good"], folder=[])
    scores = speech_bench.score_voice(None, options, tmp_path)
    assert scores == {"dnsmos": 4.0, "read_back_wer": {"deaf": 1.0, "good": 0.0}}
