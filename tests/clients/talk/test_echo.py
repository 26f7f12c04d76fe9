"""Speech over a loudspeaker: how much of it is left in the microphone, and of the caller's own."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from clients.connection import RATE_HZ
from clients.errors import DeviceMissing
from clients.recording import Samples
from clients.talk.echo import EchoCanceller, is_available
from tests.clients.talk.room import AGENT, CALLER, Room, level_db, speech

needs_livekit = pytest.mark.skipif(not is_available(), reason="livekit is not installed")
N_BLOCK = RATE_HZ // 50
SECOND = RATE_HZ


def through(canceller: EchoCanceller, agent: Samples, caller: Samples, room: Room) -> Samples:
    """What a call would send: the microphone, block by block, as a sound card gives it."""
    cleaned = []
    for start in range(0, len(agent) - N_BLOCK + 1, N_BLOCK):
        played = agent[start : start + N_BLOCK]
        canceller.play(played)
        echo = room.echo(played).astype(np.int32) + caller[start : start + N_BLOCK]
        cleaned.append(canceller.clean(np.clip(echo, -32768, 32767).astype(np.int16)))
    return np.concatenate(cleaned)


def echo_alone(agent: Samples, room: Room) -> Samples:
    blocks = range(0, len(agent) - N_BLOCK + 1, N_BLOCK)
    return np.concatenate([room.echo(agent[at : at + N_BLOCK]) for at in blocks])


@needs_livekit
@pytest.mark.parametrize("delay_ms", [10, 180])
def test_the_agents_own_speech_is_taken_out_of_the_microphone(delay_ms: int) -> None:
    agent = speech(AGENT)[: 6 * SECOND]
    silent = np.zeros(len(agent), np.int16)
    # What the sound card tells of its delay is rarely exact.
    canceller = EchoCanceller(delay_ms + 25)
    left = through(canceller, agent, silent, Room(delay_ms))
    echo = echo_alone(agent, Room(delay_ms))[: len(left)]
    erle_db = {
        name: level_db(echo[part]) - level_db(left[part])
        for name, part in {
            "first second": slice(0, SECOND),
            "settled": slice(3 * SECOND, None),
        }.items()
    }
    assert erle_db["first second"] >= 12, erle_db
    assert erle_db["settled"] >= 25, erle_db


@needs_livekit
def test_the_caller_is_heard_over_the_agent() -> None:
    agent = speech(AGENT)[: 7 * SECOND]
    caller = np.zeros(len(agent), np.int16)
    said = slice(4 * SECOND, 7 * SECOND)  # both speak
    caller[said] = speech(CALLER)[: 3 * SECOND]
    sent = through(EchoCanceller(60), agent, caller, Room(60))
    loud = np.abs(caller[said].astype(np.int32)) > 1000
    kept_db = level_db(sent[said][loud]) - level_db(caller[said][loud])
    assert -6 <= kept_db <= 3, kept_db
    before = slice(2 * SECOND, 4 * SECOND)
    assert level_db(sent[said]) - level_db(sent[before]) >= 15  # of the agent alone little is left


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "livekit", None)
    with pytest.raises(DeviceMissing, match=r"pip install 'voiceloop\[talk\]'"):
        EchoCanceller(0.0)
