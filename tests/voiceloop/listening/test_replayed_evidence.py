"""What the fit replays of a turn is what the listener finds in a call."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from audio.asr.window_recognizer import READ_AGAIN
from audio.frames import VAD_WINDOW_MS
from audio.vad import Vad
from benchmarks.harness.data_folder import data_folder
from clients.recording import Samples, read_flac
from tests.fakes import FakeRecognizer
from voiceloop.listening.evidence import Evidence
from voiceloop.listening.listener import Listener, ListenerOptions
from voiceloop.listening.recipes.endpointing_set import MS, CallerTurn, levelled
from voiceloop.listening.recipes.heard_turn import pauses_of, returns_of
from voiceloop.listening.recipes.pause_evidence import heard_turn
from voiceloop.listening.recipes.voice_reading import STEP, readings_of
from voiceloop.realtime.settings import AudioFormat, SemanticVad, SessionSettings

pytestmark = pytest.mark.virtual_time

CHUNK = 20 * MS
# The two cut the sound into frames at other places, and a soft last sound may lie on either side of
# what counts as one: that is worth two windows of the detector. In the hiss of an old recording
# pitch is a matter of chance, so a clean voice is heard.
APART_MS = 2 * VAD_WINDOW_MS
CLIP = "ljspeech/LJ001-0001.flac"


def spoken_turn() -> CallerTurn:
    path = data_folder() / "speech" / CLIP
    if not path.is_file():
        pytest.skip(f"no speech data at {path}: set VOICELOOP_DATA")
    spoken = levelled(read_flac(path).samples)
    samples = np.concatenate([np.zeros(500 * MS, np.int16), spoken, np.zeros(900 * MS, np.int16)])
    end_ms = 500.0 + len(spoken) / MS
    return CallerTurn("clip", "someone", "fit", samples, None, (), end_ms, (), frozenset())


def evidence_of_pauses(samples: Samples) -> Iterator[tuple[float, Evidence]]:
    """The last sound and all that is known at each first quiet window, as the listener hears."""
    listener = a_listener()
    was_paused = False
    for start in range(0, len(samples) - CHUNK + 1, CHUNK):
        listener.feed(samples[start : start + CHUNK].tobytes())
        segment = listener._segment
        is_paused = segment is not None and segment.is_paused
        if segment is not None and is_paused and not was_paused:
            yield segment.last_sound_ms, listener._endpointing.evidence
        was_paused = is_paused


def a_listener() -> Listener:
    return Listener(
        recognizer=FakeRecognizer(),
        options=ListenerOptions(),
        settings=SessionSettings(
            turn_detection=SemanticVad(), input_format=AudioFormat("audio/pcm", 16_000)
        ),
        vad=Vad(),
        clock=lambda: 0.0,
        stream_id="s",
        deliver=lambda events: None,
    )


def returns_in_pauses(samples: Samples) -> Iterator[tuple[float, float]]:
    """For how long a turn would stay open whose wait is over at the end of a chunk, ms both."""
    listener = a_listener()
    for start in range(0, len(samples) - CHUNK + 1, CHUNK):
        listener.feed(samples[start : start + CHUNK].tobytes())
        is_paused = listener._segment is not None and listener._segment.is_paused
        if is_paused and (longest_ms := listener._onset.may_be_back_ms):
            yield (start + CHUNK) / MS, longest_ms


async def test_the_fit_sees_what_the_listener_hears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOICELOOP_CACHE", str(tmp_path))
    turn = spoken_turn()
    samples = turn.samples
    replayed = heard_turn(turn, (), None).pauses
    heard = list(evidence_of_pauses(samples))
    returns_ms = returns_of(turn)
    in_pauses = dict(returns_in_pauses(samples))
    assert in_pauses and {ms: returns_ms.get(ms) for ms in in_pauses} == in_pauses
    assert len(heard) == len(replayed) == len(pauses_of(turn)) > 0
    for (last_sound_ms, live), pause in zip(heard, replayed, strict=True):
        offline = pause.steps[0].evidence
        assert pause.since_ms == pytest.approx(last_sound_ms, abs=APART_MS)
        assert offline.speech_ms == pytest.approx(live.speech_ms, abs=APART_MS)
        assert max(offline.turn_pauses_ms, default=0.0) == pytest.approx(
            max(live.turn_pauses_ms, default=0.0), abs=APART_MS
        )
        assert offline.tail_level_db == pytest.approx(live.tail_level_db, abs=1.0)
        assert offline.tail_semitones == pytest.approx(live.tail_semitones, abs=1.0)


def test_the_voice_is_read_as_it_falls_and_once_more_where_the_silence_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VOICELOOP_CACHE", str(tmp_path))
    turn = spoken_turn()
    *_, last = pauses_of(turn)
    told, again = [r for r in readings_of(turn) if r.asked_ms >= last.detected_ms]
    assert told.asked_ms == last.detected_ms
    assert told.heard_to_ms < last.detected_ms  # before the detector is sure
    assert again.asked_ms == again.heard_to_ms
    lasted_ms = again.heard_to_ms - told.heard_to_ms
    assert lasted_ms == pytest.approx(READ_AGAIN / MS, abs=STEP / MS)
