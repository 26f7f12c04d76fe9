"""Voice activity as a stream: state is carried, positions are exact, missing parts are named."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

from audio import vad
from audio.errors import MissingExtra
from audio.vad import LEAD_WINDOWS, Vad
from tests.test_layering import ROOMS, ROOT, imports, python_files


@pytest.fixture
def clip(manifest, read_clip):
    file = next(record["file"] for record in manifest if record["source"] == "jfk")
    return read_clip(file)[: 16_000 * 3]


def test_any_chunking_gives_the_same_probabilities(clip):
    whole = Vad().feed(clip)
    detector = Vad()
    chunked = [p for part in np.array_split(clip, 71) for p in detector.feed(part)]
    assert chunked == whole
    assert [p.end_position for p in whole] == [512 * (i + 1) for i in range(len(clip) // 512)]


def test_the_windows_between_are_those_of_a_detector_that_begins_just_before_it_looks(clip):
    detector, whole = Vad(), Vad().feed(clip)
    parts = [clip[start : start + 320] for start in range(0, len(clip), 320)]
    told = [p for part in parts[:40] for p in detector.feed(part)]
    detector.look_between(True)
    told += [p for part in parts[40:80] for p in detector.feed(part)]
    detector.look_between(False)
    told += [p for part in parts[80:] for p in detector.feed(part)]
    assert [p for p in told if not p.is_between] == whole
    assert [p.end_position for p in told] == sorted(p.end_position for p in told)
    begins = (40 * 320 // 512 - LEAD_WINDOWS) * 512 + 256
    alone = Vad().feed(clip[begins : 80 * 320])
    expected = [(p.end_position + begins, p.probability) for p in alone]
    between = [(p.end_position, p.probability) for p in told if p.is_between]
    assert between == [one for one in expected if one[0] > 40 * 320]
    assert len(between) == 25


def test_a_stream_of_a_few_samples_has_no_windows_between(clip):
    detector = Vad()
    detector.feed(clip[:100])
    detector.look_between(True)
    assert detector.feed(clip[100:600]) == Vad().feed(clip[:600])


def test_state_is_carried_as_in_the_model_run_over_all_windows_at_once(clip):
    windows = clip[: len(clip) // 512 * 512].reshape(-1, 512).astype(np.float32) / 32768
    context = np.vstack([np.zeros((1, 64), np.float32), windows[:-1, -64:]])
    zeros = np.zeros((1, 1, 128), np.float32)
    inputs = {"input": np.hstack([context, windows]), "h": zeros, "c": zeros}
    expected = vad._load_session().run(None, inputs)[0]
    streamed = [p.probability for p in Vad().feed(clip)]
    np.testing.assert_allclose(streamed, expected, atol=1e-4)


def test_speech_is_told_from_noise(clip):
    speech = [p.probability for p in Vad().feed(clip)]
    noise = np.random.default_rng(0).normal(0, 300, 16_000).astype(np.int16)
    assert max(speech) > 0.7
    assert max(p.probability for p in Vad().feed(noise)) < 0.3


def test_reset_starts_a_new_stream(clip):
    detector = Vad()
    first = detector.feed(clip)
    detector.reset()
    assert detector.feed(clip) == first


def test_the_models_file_is_the_one_that_its_card_names():
    card = (vad.MODEL_FILE.parent / "CARD.md").read_text()
    assert hashlib.sha256(vad.MODEL_FILE.read_bytes()).hexdigest() in card
    assert "Silero Team" in (vad.MODEL_FILE.parent / "LICENSE").read_text()


def test_a_missing_package_names_its_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    vad._load_session.cache_clear()
    with pytest.raises(MissingExtra, match=r"pip install 'voiceloop\[embedded\]'"):
        Vad()


def imported(path):
    return {name.split(".")[0] for name in imports(path)}


def test_the_detector_needs_neither_faster_whisper_nor_pyav_and_onnxruntime_tells_nobody():
    """What it would tell is when it is imported: its telemetry is off before that, anywhere."""
    script = (
        "import os, sys\n"
        "sys.modules['faster_whisper'] = sys.modules['av'] = None\n"
        "from audio.vad import Vad\n"
        "Vad()\n"
        "assert 'onnxruntime' in sys.modules\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'\n"
    )
    environ = {name: text for name, text in os.environ.items() if not name.startswith("ORT_")}
    subprocess.run([sys.executable, "-c", script], env=environ, check=True)
    importers = [path for room in ROOMS for path in python_files(room)]
    importers += sorted((ROOT / "benchmarks").rglob("*.py"))
    outside = [
        str(path.relative_to(ROOT))
        for path in importers
        if "onnxruntime" in path.read_text(encoding="utf-8")  # what follows reads it slowly
        and "onnxruntime" in imported(path)
        and "audio" not in imported(path)
        and path.relative_to(ROOT).parts[0] != "audio"
    ]
    assert outside == []
