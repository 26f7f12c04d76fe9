"""The recognizers' benchmark: clips as they sound to each, what holds no word, and the wait."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from audio.frames import RECOGNIZER_HZ
from audio.stream import Event, Partial, RecognizerOptions, Transcript, Word
from benchmarks import recognizer_bench
from benchmarks.recognizer_bench import score_clip
from benchmarks.recognizers.clips import BABBLE, Clip

RNG = np.random.default_rng(0)
NOISES = {
    name: RNG.normal(0, 1000, 5 * RECOGNIZER_HZ).astype(np.int16)
    for name in (BABBLE, "kitchen_1.flac")
}
TONE = (8000 * np.sin(2 * np.pi * 440 * np.arange(RECOGNIZER_HZ) / RECOGNIZER_HZ)).astype(np.int16)


class Scripted:
    """A recognizer that says the same words of every sound, a flush of which takes steps."""

    languages = ("en",)

    def __init__(self, *words: str, n_steps: int = 1) -> None:
        self.words, self.n_steps = words, n_steps
        self.owed: dict[str, tuple[str, int]] = {}

    def open(self, stream_id: str, options: RecognizerOptions) -> None: ...
    def feed(self, stream_id: str, samples: object) -> None: ...
    def close(self, stream_id: str) -> None: ...
    def flush(self, stream_id: str) -> None:
        self.owed[stream_id] = ("flush", self.n_steps)

    def finalize(self, stream_id: str) -> None:
        self.owed[stream_id] = ("finalize", self.n_steps)

    def has_work(self) -> bool:
        return bool(self.owed)

    def step(self) -> list[Event]:
        events: list[Event] = []
        for stream_id, (asked, left) in list(self.owed.items()):
            self.owed[stream_id] = (asked, left - 1)
            if left > 1:
                continue
            del self.owed[stream_id]
            if asked == "flush":
                events.append(Partial(stream_id, 0, self.words, (), True))
            else:
                words = tuple(Word(word, 0.0, 1.0) for word in self.words)
                events.append(Transcript(stream_id, 0, words))
        return events


def test_errors_and_slots_are_counted_and_both_names_of_a_digit_are_right() -> None:
    clip = Clip("fsdd", Path("x"), words=("zero", "one", "two"))
    score = score_clip(Scripted("oh", "one", "three"), clip, TONE)
    assert (score.errors, score.n) == (1, 3)
    order = Clip("commands (slots)", Path("x"), slots=(("oat", "milk"), ("large",)))
    assert score_clip(Scripted("a", "large", "milk"), order, TONE).errors == 1


def test_the_smallest_run_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speech = tmp_path / "speech"
    (speech / "noise").mkdir(parents=True)
    for name, noise in NOISES.items():
        soundfile.write(speech / "noise" / name, noise, RECOGNIZER_HZ)
    soundfile.write(speech / "a.flac", TONE, RECOGNIZER_HZ)
    row = {"source": "ljspeech", "file": "a.flac", "text": "and so"}
    (speech / "manifest.jsonl").write_text(json.dumps(row))
    (speech / "commands.jsonl").write_text("")
    (speech / "slots.jsonl").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOICELOOP_DATA", str(tmp_path))
    command = ["--sources", "ljspeech", "--models", "moonshine-tiny", "--no-waits", "--check"]
    for words, expected in ((("and", "so"), 0), (("or", "no"), 1)):
        monkeypatch.setattr(recognizer_bench, "built", lambda *_, words=words: Scripted(*words))
        assert recognizer_bench.main(command) == expected
    assert len(list(tmp_path.glob("out/benchmarks/*.json"))) >= 1
