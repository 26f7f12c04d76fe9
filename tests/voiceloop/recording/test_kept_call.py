"""A call that is kept: what stands in its files is what its client heard, and nothing private."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.callers import CHUNK_MS, RATE_HZ, Caller
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, instant_backends
from voiceloop.agent import AgentConfig, AgentSlot
from voiceloop.backends import Backends
from voiceloop.config import Config
from voiceloop.operation import RecordingSettings
from voiceloop.realtime.sound_line import Digit
from voiceloop.recording.recorder import Recorder
from voiceloop.recording.timeline import LEFT, RIGHT

pytestmark = pytest.mark.virtual_time
Clock = Callable[[], float]


@asynccontextmanager
async def kept(
    clock: Clock,
    folder: Path,
    backends: Backends | None = None,
    agent: AgentConfig | None = None,
    **settings: Any,
) -> AsyncIterator[Caller]:
    """A call in the block; its files are written behind it."""
    chosen = {"consent": "none", **settings}
    config = Config(recording=RecordingSettings(folder=folder, **chosen))
    agent = agent or AgentConfig()
    recorder = Recorder(config, agent, clock, lambda outcome: None)
    try:
        async with Caller(clock, backends, agent, config=config, recordings=recorder) as caller:
            yield caller
    finally:
        await asyncio.to_thread(recorder.close)


def notes_in(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def sound_in(folder: Path) -> NDArray[np.int16]:
    (path,) = folder.glob("*.flac")
    samples, rate_hz = soundfile.read(path, dtype="int16")
    assert rate_hz == RATE_HZ
    found: NDArray[np.int16] = samples
    return found


def played(caller: Caller, from_s: float, n_samples: int) -> NDArray[np.int16]:
    """The agent as a client without a buffer plays it, which flushes at `speech_started`."""
    out, end_s = np.zeros(n_samples, np.int16), 0.0
    for received in caller.transport.received:
        if received.type == "input_audio_buffer.speech_started":
            out[max(0, round((received.at_s - from_s) * RATE_HZ)) :] = 0
            end_s = min(end_s, received.at_s)
        if received.type == "response.output_audio.delta":
            samples = np.frombuffer(base64.b64decode(received.event["delta"]), "<i2")
            end_s = max(end_s, received.at_s)
            at = round((end_s - from_s) * RATE_HZ)
            out[at : at + len(samples)] = samples
            end_s += len(samples) / RATE_HZ
    return out


async def test_the_recording_is_sample_by_sample_what_was_said_and_what_was_played(
    clock: Clock, tmp_path: Path
) -> None:
    model = FakeLanguageModel(["one two three four five six seven eight nine ten", "Okay."])
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "stop please"]),
        language_model=model,
        voice=FakeVoice(ms_per_char=100),
    )
    async with kept(clock, tmp_path, backends) as caller:
        from_s = clock() - CHUNK_MS / 1000.0  # a frame's first sample was recorded before it came
        await caller.say(900)
        await caller.listen_until("response.output_audio.delta")
        await caller.wait_quietly(1500)
        await caller.say(700)
        await caller.listen_until("response.done", count=2)
        await caller.wait_quietly(500)
    both, notes = sound_in(tmp_path), notes_in(tmp_path)
    assert abs(len(both) - RATE_HZ * caller.sent_ms / 1000.0) <= RATE_HZ * 0.02
    heard = played(caller, from_s, len(both))
    differs = np.flatnonzero(both[:, RIGHT] != heard)
    # Where the caller interrupts, the server's estimate and a client's flush are one chunk apart.
    assert len(differs) <= RATE_HZ * 0.02
    (cut,) = notes["cuts"]
    sounding = np.flatnonzero(both[:, RIGHT])
    last_of_first = sounding[sounding < second_reply(heard)][-1]
    assert abs(1000.0 * last_of_first / RATE_HZ - cut["at_ms"]) <= 20.0
    turns = notes["turns"]
    assert [turn["outcome"] for turn in turns] == ["cancelled", "completed"]
    assert [turn["heard"] for turn in turns] == ["tell me a story", "stop please"]
    assert turns[1]["said"] == "Okay."
    end_ms = turns[0]["marks_ms"]["speech_end"]
    loud = np.flatnonzero(np.abs(both[: RATE_HZ * 2, LEFT]) > 2000)
    assert abs(end_ms - 1000.0 * loud[-1] / RATE_HZ) < 40
    assert turns[0]["endpoint"]["needed_ms"] > 0.0  # why the server waited
    first = notes["said"][0]["heard_words"][0]
    assert first["text"] == "one"
    sounds = np.flatnonzero(both[:, RIGHT])[0]
    assert abs(first["at_ms"] - 1000.0 * sounds / RATE_HZ) < 10
    assert not notes["is_degraded"]


def second_reply(heard: NDArray[np.int16]) -> int:
    """Its first sample: behind the last silence of a fifth of a second."""
    sounding = np.flatnonzero(heard)
    breaks = np.flatnonzero(np.diff(sounding) > RATE_HZ // 5)
    return int(sounding[breaks[-1] + 1])


async def test_nothing_is_kept_before_a_yes(clock: Clock, tmp_path: Path) -> None:
    agent = AgentConfig(greeting="Hello, this is the cafe.")
    backends = instant_backends(recognizer=FakeRecognizer(["yes please", "do you have cake"]))
    async with kept(clock, tmp_path, backends, agent, consent="asked") as caller:
        await caller.listen_until("response.done")
        assert not os.listdir(tmp_path)
        await caller.say(800)
        await caller.listen_until("response.done", count=2)
        await caller.say(800)
        await caller.listen_until("response.done", count=3)
    assert caller.transcript().startswith(
        "May I record this call? Please say yes or no.Thank you. Hello, this is the cafe."
    )
    notes = notes_in(tmp_path)
    assert notes["consent"] == {"how": "asked", "words": "yes please"}
    assert [turn["heard"] for turn in notes["turns"]][-1] == "do you have cake"
    assert "May I record" not in json.dumps(notes)
    assert len(sound_in(tmp_path)) < RATE_HZ * (caller.sent_ms / 1000.0 - 3.0)


@pytest.mark.parametrize("said", ["no thanks", "what do you mean", ""])
async def test_nothing_is_kept_after_a_no(clock: Clock, tmp_path: Path, said: str) -> None:
    backends = instant_backends(recognizer=FakeRecognizer([said or "well", said or "well", "cake"]))
    async with kept(clock, tmp_path, backends, consent="asked") as caller:
        for n_done in range(1, 4):
            await caller.listen_until("response.done", count=n_done)
            await caller.say(800)
        await caller.listen_until("response.done", count=4)
    assert not os.listdir(tmp_path)


async def test_a_call_is_kept_from_the_sentence_on_that_says_so(
    clock: Clock, tmp_path: Path
) -> None:
    agent = AgentConfig(greeting="Hello.", language="de")
    async with kept(clock, tmp_path, agent=agent, consent="announced") as caller:
        await caller.listen_until("response.done")
    assert caller.transcript() == "Dieses Gespräch wird aufgezeichnet. Hello."
    assert np.abs(sound_in(tmp_path)[:, RIGHT]).any()
    assert notes_in(tmp_path)["consent"]["how"] == "announced"


async def test_the_answer_to_a_sensitive_slot_is_in_neither_voice_nor_words(
    clock: Clock, tmp_path: Path
) -> None:
    slot = AgentSlot("card number", "number", digits=4, name="card", sensitive=True)
    recognizer = FakeRecognizer(["book a table", "four one one one", "thanks"])
    model = FakeLanguageModel(
        ["What is your card number?", "Booked.", "Bye."], p_end_of_turn=lambda text: 0.9
    )
    backends = instant_backends(recognizer=recognizer, language_model=model)
    agent = AgentConfig(slots=(slot,))
    async with kept(clock, tmp_path, backends, agent) as caller:
        spoken_ms = []
        for n_turns in range(1, 4):
            spoken_ms.append(caller.sent_ms)
            await caller.say(2000)
            await caller.listen_until("voiceloop.timeline", count=n_turns)
            await caller.wait_quietly(2500)
    assert "4 1 1 1" not in caller.transcript()  # it is not read back
    notes, both = notes_in(tmp_path), sound_in(tmp_path)
    text = json.dumps(notes)
    assert "four one one" not in text
    assert "4 1 1" not in text
    assert "4111" not in text
    assert notes["slots"] == {"card": "[hidden]"}
    assert [turn["heard"] for turn in notes["turns"]][-1] == "thanks"
    loudest = [
        int(np.abs(both[round(24 * ms) : round(24 * (ms + 2000)), LEFT]).max()) for ms in spoken_ms
    ]
    assert loudest[0] > 2000
    assert loudest[1] == 0  # the number
    assert loudest[2] > 2000
    said_ms = [entry["heard_words"][0]["at_ms"] for entry in notes["said"]]
    assert all(ms < spoken_ms[1] or not audible(both, ms) or ms > spoken_ms[1] for ms in said_ms)


def audible(both: NDArray[np.int16], at_ms: float) -> bool:
    return bool(both[round(24 * at_ms) : round(24 * (at_ms + 200)), RIGHT].any())


async def test_words_are_left_out_where_the_file_says_so(clock: Clock, tmp_path: Path) -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["my number is five five five one two"]))
    async with kept(clock, tmp_path / "a", backends, words="without_figures") as caller:
        await caller.say(1800)
        await caller.listen_until("response.done")
    assert notes_in(tmp_path / "a")["turns"][0]["heard"] == "my number is [hidden]"
    async with kept(clock, tmp_path / "b", words="none") as caller:
        await caller.say(800)
        await caller.listen_until("response.done")
    notes = notes_in(tmp_path / "b")
    assert "help you" not in json.dumps(notes)
    assert notes["turns"][0]["stages"]


async def test_the_sound_of_a_telephone_is_kept_in_time(clock: Clock, tmp_path: Path) -> None:
    async with kept(clock, tmp_path) as caller:
        pcmu = {"type": "audio/pcmu"}
        caller.send("session.update", session={"audio": {"output": {"format": pcmu}}})
        await caller.wait_for("session.updated")
        await caller.say(800)
        await caller.listen_until("response.done")
        await caller.wait_quietly(300)
    both, notes = sound_in(tmp_path), notes_in(tmp_path)
    n_said = np.flatnonzero(np.abs(both[:, RIGHT]) > 8)
    first_ms = 1000.0 * n_said[0] / RATE_HZ
    assert abs(first_ms - notes["turns"][0]["marks_ms"]["first_byte_on_wire"]) < 40
    assert [one["event"]["type"] for one in notes["client"]] == ["session.update"]


async def test_keys_of_a_telephone_are_kept(clock: Clock, tmp_path: Path) -> None:
    async with kept(clock, tmp_path) as caller:
        await caller.wait_quietly(400)
        caller.transport._to_server.put_nowait(Digit("4"))
        await caller.wait_quietly(400)
    (pressed,) = notes_in(tmp_path)["digits"]
    assert pressed["value"] == "4"
    assert 300 < pressed["at_ms"] < 500
