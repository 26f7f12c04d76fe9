"""The real turns of the shared data, read once."""

import os
from pathlib import Path

import pytest

from audio.recipes.paused_speech import paused_turns

DATA = Path(os.environ.get("VOICELOOP_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))


@pytest.fixture(scope="session")
def real_turns():
    """Every `PausedTurn`; skips where the data is absent."""
    if not (DATA / "speech" / "slots.jsonl").is_file():
        pytest.skip(f"no speech data at {DATA}: set VOICELOOP_DATA")
    return list(paused_turns(DATA))
