"""The scores of a voice: its features, what is read back, and what they need."""

import numpy as np

from audio.frames import RECOGNIZER_HZ
from audio.stream import Speech, SpeechEnd, Transcript, Word
from benchmarks.harness.voice_score import SENTENCES, read_back_wer, speak


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
