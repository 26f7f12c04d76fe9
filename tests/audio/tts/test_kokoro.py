"""Kokoro's voice over a scripted stand-in for its package, which is not installed here."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from audio.errors import AudioError
from audio.stream import Speech, SpeechEnd, VoiceOptions
from audio.tts import kokoro as kokoro_voice

torch = pytest.importorskip("torch")


class ScriptedModel:
    def __init__(self, repo_id, config, model):
        self.files = (config, model)

    def to(self, device):
        return self

    def eval(self):
        return self


class ScriptedPipeline:
    """Every word takes 100 ms; tokens carry times as the package's do."""

    has_times = True

    def __init__(self, lang_code, repo_id, model):
        self.calls = []

    def __call__(self, text, voice, speed):
        self.calls.append((text, voice, speed))
        tokens = [
            SimpleNamespace(
                text=word,
                whitespace=" ",
                start_ts=0.1 * i if self.has_times else None,
                end_ts=0.1 * (i + 1) if self.has_times else None,
            )
            for i, word in enumerate(text.split())
        ]
        audio = torch.full((2_400 * len(tokens),), 0.25)
        yield SimpleNamespace(audio=audio, tokens=tokens)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    package = ModuleType("kokoro")
    package.KModel, package.KPipeline = ScriptedModel, ScriptedPipeline
    monkeypatch.setitem(sys.modules, "kokoro", package)
    monkeypatch.setattr(kokoro_voice, "find_spec", lambda name: object())
    (tmp_path / "voices").mkdir()
    for name in ("config.json", "kokoro-v1_0.pth", "voices/af_heart.pt", "voices/bm_lewis.pt"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def speak(voice, text, voice_id=""):
    voice.open("a", VoiceOptions(voice=voice_id, speed=1.25))
    voice.feed("a", text)
    voice.finish("a")
    events = []
    while voice.has_work():
        events += voice.step()
    return events


def test_words_have_the_packages_own_times(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu")
    events = speak(voice, "Good morning to you.", "bm_lewis")
    words = [word for e in events if isinstance(e, Speech) for word in e.words]
    assert [(w.text, round(w.start_ms), round(w.end_ms)) for w in words] == [
        ("Good", 0, 100), ("morning", 100, 200), ("to", 200, 300), ("you.", 300, 400),
    ]  # fmt: skip
    assert events[-1] == SpeechEnd("a", 9_600)
    assert voice._pipeline.calls == [
        ("Good morning to you.", str(folder / "voices" / "bm_lewis.pt"), 1.25)
    ]


def test_only_an_english_voice_has_its_numbers_spelled_out(folder):
    for language, read in (("a", "Room forty two"), ("e", "Room 42")):
        voice = kokoro_voice.KokoroVoice(folder, language=language, device="cpu")
        speak(voice, "Room 42")
        assert [text for text, *_ in voice._pipeline.calls] == [read]


def test_words_without_times_are_proportional(folder, monkeypatch):
    monkeypatch.setattr(ScriptedPipeline, "has_times", False)
    events = speak(kokoro_voice.KokoroVoice(folder, device="cpu"), "Good morning.")
    words = [word for e in events if isinstance(e, Speech) for word in e.words]
    assert [word.text for word in words] == ["Good", "morning."]
    assert 0.0 == words[0].start_ms < words[1].start_ms < words[1].end_ms == pytest.approx(200.0)


def test_cancelling_one_reply_leaves_the_other_identical(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu")
    alone = speak(voice, "Good morning to you. How are you?")
    for stream_id in "ab":
        voice.open(stream_id, VoiceOptions(speed=1.25))
        voice.feed(stream_id, "Good morning to you. How are you?")
        voice.finish(stream_id)
    events = voice.step()
    voice.close("b")
    while voice.has_work():
        events += voice.step()

    def shown(events):
        return [(e.samples.tolist(), e.words) for e in events if isinstance(e, Speech)]

    assert shown([e for e in events if e.stream_id == "a"]) == shown(alone) != []
    assert not any(isinstance(e, SpeechEnd) and e.stream_id == "b" for e in events)


def test_samples_are_the_packages_at_24_khz(folder):
    events = speak(kokoro_voice.KokoroVoice(folder, device="cpu"), "Yes.")
    samples = np.concatenate([e.samples for e in events if isinstance(e, Speech)])
    assert len(samples) == 2_400 and set(samples.tolist()) == {round(0.25 * 32767)}


@pytest.mark.parametrize(
    ("absent", "sentence"),
    [
        ("kokoro", "expected the package 'kokoro'.*remedy: pip install .voiceloop.kokoro."),
        ("en_core_web_sm", "expected the spaCy model en_core_web_sm.*remedy"),
    ],
)
def test_a_missing_package_names_the_remedy(folder, monkeypatch, absent, sentence):
    monkeypatch.setattr(
        kokoro_voice, "find_spec", lambda name: None if name == absent else object()
    )
    with pytest.raises(AudioError, match=sentence):
        kokoro_voice.KokoroVoice(folder, device="cpu")


@pytest.mark.parametrize("name", ["config.json", "kokoro-v1_0.pth"])
def test_a_missing_file_is_named_before_anything_is_fetched(folder, name):
    (folder / name).unlink()
    with pytest.raises(AudioError, match=f"expected {name} in .*remedy"):
        kokoro_voice.KokoroVoice(folder, device="cpu")


def test_an_unknown_voice_is_refused(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu")
    with pytest.raises(AudioError, match="expected a voice of af_heart, bm_lewis, found 'x'"):
        voice.open("a", VoiceOptions(voice="x"))


def test_a_clause_that_was_spoken_before_is_not_synthesized_again(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu")
    first = speak(voice, "Good morning to you.", "bm_lewis")
    again = speak(voice, "Good morning to you.", "bm_lewis")
    assert len(voice._pipeline.calls) == 1
    for one, other in zip(first, again, strict=True):
        if isinstance(one, Speech):
            assert one.words == other.words and np.array_equal(one.samples, other.samples)
    assert any(isinstance(event, Speech) for event in again)
    speak(voice, "Good morning to you.", "af_heart")  # another voice
    speak(voice, "Good morning to them.", "bm_lewis")
    assert len(voice._pipeline.calls) == 3


def test_words_behind_others_are_told_where_they_stand_now(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu")
    speak(voice, "One moment, please.")
    events = speak(voice, "All of it is here for you today. One moment, please.")
    words = [word for e in events if isinstance(e, Speech) for word in e.words]
    assert [word.text_end for word in words][-3:] == [36, 44, 52]


def test_a_voice_without_room_keeps_no_clause(folder):
    voice = kokoro_voice.KokoroVoice(folder, device="cpu", kept_mb=0)
    speak(voice, "Good morning.")
    speak(voice, "Good morning.")
    assert len(voice._pipeline.calls) == 2
