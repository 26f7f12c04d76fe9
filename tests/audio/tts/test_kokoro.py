"""Kokoro's voice over a scripted network: its folder, its voices, and when its words are spoken."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.stepping import drain

pytest.importorskip("hibari", reason="the wheel hibari-tts is not installed")

from audio.errors import AudioError
from audio.stream import Speech, SpeechEnd, VoiceOptions
from audio.tts import kokoro
from audio.tts.kokoro import FRAME, KokoroVoice

FRAMES = 4  # of each phoneme: 100 ms


class ScriptedSession:
    """A tone as long as the phonemes say; its style's first value is its loudness."""

    def __init__(self, graph, threads):
        self.tells_durations = graph.endswith(kokoro.as_output(kokoro.DURATIONS))
        if self.tells_durations and b"unnamed" in graph:
            raise RuntimeError("no such value")
        self.given = []

    def get_inputs(self):
        return [SimpleNamespace(name=name) for name in ("tokens", "style", "speed")]

    def run(self, names, given):
        self.given.append(given)
        n = given["tokens"].shape[1]
        tone = np.sin(np.arange(n * FRAMES * FRAME) / 5, dtype=np.float32)
        ends = [np.cumsum([[FRAMES] * n])] if self.tells_durations else []
        return [given["style"][0, 0] * tone, *ends]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(kokoro, "session_of", ScriptedSession)
    (tmp_path / "voices").mkdir()
    (tmp_path / "kokoro-v1.0.int8.onnx").write_bytes(b"graph")
    for n, name in enumerate(("af_heart", "bm_george", "jf_alpha"), start=1):
        np.full((510, 256), 0.1 * n, np.float32).tofile(tmp_path / "voices" / f"{name}.bin")
    return tmp_path


def speak(model, text, **options):
    model.open("s", VoiceOptions(**options))
    model.feed("s", text)
    model.finish("s")
    events = drain(model)
    assert isinstance(events[-1], SpeechEnd)
    speech = [event for event in events if isinstance(event, Speech)]
    return np.concatenate([e.samples for e in speech]), [w for e in speech for w in e.words]


def test_its_english_voices_speak_by_name_and_the_first_where_none_is_named(folder):
    voice = KokoroVoice(folder)
    assert voice.voices == ("af_heart", "bm_george")
    quiet, _ = speak(voice, "Four dollars.")
    loud, _ = speak(voice, "Four dollars.", voice="bm_george")
    assert abs(int(loud.max()) - 2 * int(quiet.max())) < 50
    with pytest.raises(AudioError, match="expected a voice of af_heart, bm_george"):
        speak(voice, "Four dollars.", voice="jf_alpha")


def test_its_words_lie_where_its_durations_say(folder):
    samples, words = speak(KokoroVoice(folder), "Four dollars.")
    assert [word.text for word in words] == ["Four", "dollars."]
    assert [word.text_end for word in words] == [4, 13]
    assert words[0].start_ms < 300 < words[0].end_ms < 600 < words[1].end_ms
    assert words[1].end_ms <= 1000 * len(samples) / 24_000


def test_a_graph_that_tells_no_durations_shares_its_time_out(folder):
    (folder / "kokoro-v1.0.int8.onnx").write_bytes(b"unnamed")
    samples, words = speak(KokoroVoice(folder), "Four dollars.")
    assert words[0].end_ms < words[1].end_ms <= 1000 * len(samples) / 24_000


def test_a_style_is_that_of_as_many_phonemes(folder):
    styles = np.zeros((3, 256), np.float32)
    styles[:, 0] = 1, 2, 3
    styles.tofile(folder / "voices" / "af_heart.bin")
    voice = KokoroVoice(folder, kept_mb=0)
    speak(voice, "I know.")
    given = voice._model._session.given
    n_phonemes = given[0]["tokens"].shape[1] - 2
    assert given[0]["style"][0, 0] == min(n_phonemes, 3)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda f: (f / "kokoro-v1.0.int8.onnx").unlink(), r"expected \*\.onnx in"),
        (lambda f: [p.unlink() for p in (f / "voices").iterdir()], r"expected voices/\[ab\]"),
        (lambda f: (f / "voices/af_heart.bin").write_bytes(b"four"), "expected rows of 256"),
    ],
)
def test_a_folder_that_lacks_something_is_refused_by_its_name(folder, spoil, told):
    spoil(folder)
    with pytest.raises(AudioError, match=told):
        KokoroVoice(folder)


def test_eight_bits_are_read_before_other_graphs(folder):
    (folder / "onnx").mkdir()
    for name in ("model.onnx", "model_q4.onnx", "model_quantized.onnx"):
        (folder / "onnx" / name).write_bytes(b"")
    found = sorted((folder / "onnx").iterdir(), key=kokoro._precision)
    assert [p.name for p in found] == ["model_quantized.onnx", "model.onnx", "model_q4.onnx"]


def test_it_runs_on_no_gpu(folder):
    with pytest.raises(AudioError, match="expected device cpu or auto"):
        KokoroVoice(folder, device="cuda")
