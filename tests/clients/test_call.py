"""Real calls over real sockets with real processes (marker `call`): not part of the unit suite."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import wave
from pathlib import Path
from typing import Any

import pytest

from benchmarks.calls.fake_server import REPLY
from benchmarks.turn_latency import FAKE_SERVER
from clients.call.open_call import CallOptions
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.loadgen import Load, run_load
from clients.server_process import running_server
from voiceloop.models.presets import embedded_model_dir

pytestmark = [pytest.mark.call(seconds=110), pytest.mark.timeout(240)]

FILES = ("conversation.wav", "turns.json", "waterfall.png", "report.html")
# Longer than the hesitation: a plain timer leaves it alone, so that nothing may cut in.
OUT = Path(__file__).resolve().parents[2] / "out" / "demo"  # `.ci/run` tells its figures
KINDS = ("hours", "order", "food", "interrupt")  # plain, with a hesitation, cut in upon, cutting in
PATIENT = {"type": "server_vad", "silence_duration_ms": 900}


async def test_a_call_on_scripted_models_is_answered_and_measured(tmp_path: Path) -> None:
    whole = load_utterances(load_call(), "heart", RATE_HZ)
    utterances = [one for one in whole if one.turn.name in KINDS]
    async with running_server(command=FAKE_SERVER, log=tmp_path / "log") as server:
        connection = await RealtimeConnection.open(
            server.url, extras={"greeting": "1", "voiceloop.timeline": "1"}
        )
        options = CallOptions(turn_detection=PATIENT)
        result = await SimulatedCall(connection, utterances, options=options).run()
        assert server.resident_mb() > 10
    assert [turn.name for turn in result.turns] == list(KINDS)
    assert result.errors == ()
    assert result.unanswered == ()
    assert [turn.name for turn in result.turns if turn.cut_in] == []
    interrupted = {turn.name: turn for turn in result.turns}["interrupt"]
    assert interrupted.barge_in is not None
    for turn in result.turns:
        assert turn.waterfall is not None
        assert abs(turn.waterfall.sum_error_ms) <= 10
        assert turn.waterfall.missing_marks == ()
        assert turn.answer.startswith(REPLY[:9])


async def test_several_callers_at_once_are_all_answered(tmp_path: Path) -> None:
    async with running_server(command=FAKE_SERVER, log=tmp_path / "log") as server:
        result = await run_load(Load(server.url, n_calls=3, at_once=3, ramp_s=1.0, n_turns=1))
    assert result.broken == []
    assert [call.unanswered for call in result.calls] == [()] * 3
    assert {call.voice for call in result.calls} == set(load_call().voices)


def test_the_demo_answers_every_turn_and_writes_its_files() -> None:
    if not (embedded_model_dir() / "config.json").exists():
        pytest.skip(f"the embedded agent's weights are not at {embedded_model_dir()}")
    shutil.rmtree(OUT, ignore_errors=True)
    result = subprocess.run(
        [sys.executable, "-m", "voiceloop", "demo", "--json", "--out", str(OUT)],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    assert printed["unanswered"] == 0
    assert len(printed["turns"]) >= 6
    assert printed == json.loads((OUT / "turns.json").read_text())
    for name in FILES:
        assert (OUT / name).stat().st_size > 1000
    with wave.open(str(OUT / "conversation.wav")) as file:
        assert file.getnchannels() == 2
        assert file.getnframes() > 20 * RATE_HZ


async def test_a_call_is_driven_by_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    async def voiceloop(*arguments: str, code: int = 0) -> dict[str, Any]:
        command = (sys.executable, "-P", "-m", "voiceloop", "call", *arguments)
        found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        assert found.returncode == code, found.stderr
        return json.loads(found.stdout) if code == 0 else {"error": found.stderr}

    async with running_server(command=FAKE_SERVER, log=tmp_path / "log") as server:
        started = await voiceloop("start", server.url, "--out", str(tmp_path / "out"))
        assert started["call"] == "call"
        assert "named 'call' is open" in (await voiceloop("start", server.url, code=2))["error"]
        assert (await voiceloop("say", "--typed", "Hello."))["answer"].startswith(REPLY[:9])
        recording = load_call().folder / "heart" / load_call().turns[0].file
        told = await voiceloop("say", "--wav", str(recording))
        assert told["answer"].startswith(REPLY[:9])
        assert told["gap_ms"] > 0
        ended = await voiceloop("stop")
    assert ended["n_turns"] == 2  # one typed, one spoken
    assert {Path(file).name for file in ended["wrote"]} == {"conversation.wav", "turns.json"}
    assert "call start" in (await voiceloop("stop", code=2))["error"]
