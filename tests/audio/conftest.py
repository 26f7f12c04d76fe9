"""Where the tests of this room find recorded speech."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

DATA = Path(os.environ.get("VOICELOOP_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))


@pytest.fixture(scope="session")
def read_clip():
    """read_clip(path below speech/) -> int16 [n] at 16 kHz; skips where the data is absent."""
    soundfile = pytest.importorskip("soundfile", reason="soundfile is needed to read FLAC")

    def read(file: str) -> np.ndarray:
        path = DATA / "speech" / file
        if not path.is_file():
            pytest.skip(f"no speech data at {path}: set VOICELOOP_DATA")
        samples, rate_hz = soundfile.read(path, dtype="int16")
        assert rate_hz == 16_000
        return samples

    return read


@pytest.fixture(scope="session")
def manifest():
    """The records of speech/manifest.jsonl."""
    path = DATA / "speech" / "manifest.jsonl"
    if not path.is_file():
        pytest.skip(f"no speech data at {path}: set VOICELOOP_DATA")
    return [json.loads(line) for line in path.read_text().splitlines()]
