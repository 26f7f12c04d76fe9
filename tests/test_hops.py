"""The walk that counts files sees where sound goes, and what answers a turn."""

from __future__ import annotations

import pytest

from tests.hops import walked

pytestmark = pytest.mark.virtual_time


async def test_the_walk_sees_sound_come_in_and_an_answer_go_out() -> None:
    sound, turn = await walked()
    assert {"audio/resample.py", "voiceloop/listening/recognition.py"} <= sound.files
    assert {"voiceloop/call/turn_taking.py", "voiceloop/reply/playout.py"} <= turn.files
    assert "voiceloop/reply/playout.py" not in sound.files
