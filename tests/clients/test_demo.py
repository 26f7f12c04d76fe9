"""The demo's own parts: a person's recording as the caller, and the files it leaves."""

from __future__ import annotations

import asyncio
import io
import json
import sys
import wave
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from clients.agent_card import AgentCard, read_card
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ
from clients.demo import (
    DemoOptions,
    own_command,
    play,
    recording_as_call,
    run_demo,
    write_outputs,
)
from clients.errors import ClientError, ConnectionFailed, OutputError, RecordingError
from clients.provenance import provenance
from clients.recording import write_wav
from clients.report.call_summary import summary_of, turn_json
from clients.server_process import ServerProcess
from clients.terminal import Terminal
from tests.clients.mock_server import memory_call

CARD = AgentCard("Ava", "ears", "brain", "")


def speech(ms: float, rate_hz: int) -> np.ndarray:
    n = int(rate_hz * ms / 1000)
    return (6000 * np.sin(2 * np.pi * 200 * np.arange(n) / rate_hz)).astype(np.int16)


def silence(ms: float, rate_hz: int) -> np.ndarray:
    return np.zeros(int(rate_hz * ms / 1000), dtype=np.int16)


def test_a_recording_is_split_where_it_pauses_for_a_second(tmp_path: Path) -> None:
    rate = 16_000
    parts = [speech(500, rate), silence(700, rate), speech(500, rate), silence(1500, rate)]
    write_wav(tmp_path / "me.wav", (np.concatenate([*parts, speech(400, rate)]),), rate)
    first, second = recording_as_call(tmp_path / "me.wav")
    assert first.recording.rate_hz == RATE_HZ
    assert first.end / RATE_HZ == pytest.approx(1.7, abs=0.02)
    assert len(first.hesitations) == 1
    assert (second.end - second.onset) / RATE_HZ == pytest.approx(0.4, abs=0.03)
    assert second.turn.expect == ()


def test_a_recording_of_silence_or_of_hours_is_refused(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", (silence(500, 8000),), 8000)
    with pytest.raises(RecordingError, match="digital silence"):
        recording_as_call(tmp_path / "a.wav")
    write_wav(tmp_path / "b.wav", (np.ones(8000 * 601, dtype=np.int16),), 8000)
    with pytest.raises(RecordingError, match="at most 600 s, found 601 s"):
        recording_as_call(tmp_path / "b.wav")


async def test_without_matplotlib_the_demo_refuses_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.setattr("clients.report.waterfall_png.find_spec", lambda name: None)
    with pytest.raises(ClientError, match="expected matplotlib"):
        await run_demo(DemoOptions(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ending", ["interrupted", "broken off"])
@pytest.mark.virtual_time
async def test_a_call_that_ends_early_leaves_its_files_marked(
    clock: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    utterances = load_utterances(load_call(), "heart", RATE_HZ)[2:4]
    console = Terminal(file=io.StringIO())
    monkeypatch.setattr("clients.demo.SimulatedCall", partial(SimulatedCall, clock=clock))
    async with memory_call(clock) as (connection, session):
        server = ServerProcess(pid=0, port=0, ready_s=1.0)
        options = DemoOptions(out=tmp_path)
        playing = asyncio.create_task(
            play(connection, utterances, options, console, server, "A call", CARD)
        )
        await asyncio.sleep(4.0)
        if ending == "interrupted":
            playing.cancel()
            await asyncio.wait([playing])
            assert playing.cancelled()
        else:
            await session.socket.close()
            with pytest.raises(ConnectionFailed):
                await playing
    results = json.loads((tmp_path / "turns.json").read_text())
    assert results["partial"] == ending
    assert results["n_turns"] < 2
    with wave.open(str(tmp_path / "conversation.wav")) as file:
        assert file.getnframes() / RATE_HZ == pytest.approx(4.0, abs=0.2)
    page = (tmp_path / "report.html").read_text()
    assert f"A call ({ending})" in page
    assert "ears hears, brain answers, a service speaks" in page
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")


async def test_a_folder_that_cannot_be_written_is_refused_before_the_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clients.demo.running_server", None)
    (tmp_path / "out").touch()
    with pytest.raises(OutputError, match="expected a folder that can be written into"):
        await run_demo(DemoOptions(out=tmp_path / "out"))


@pytest.mark.virtual_time
async def test_a_call_leaves_its_four_files(clock: Callable[[], float], tmp_path: Path) -> None:
    utterances = load_utterances(load_call(), "heart", RATE_HZ)[2:3]
    async with memory_call(clock) as (connection, _):
        call = SimulatedCall(connection, utterances, clock=clock)
        result = await call.run()
    results = {
        "agent": asdict(CARD),
        **provenance(),
        **summary_of([result]),
        "turns": [turn_json(turn) for turn in result.turns],
    }
    caller = call.uplink.recorded()
    write_outputs(DemoOptions(out=tmp_path), call.record, result, results, caller, "A call")
    assert json.loads((tmp_path / "turns.json").read_text()) == json.loads(json.dumps(results))
    with wave.open(str(tmp_path / "conversation.wav")) as file:
        assert (file.getnchannels(), file.getframerate()) == (2, RATE_HZ)
        assert file.getnframes() >= len(caller)
    assert (tmp_path / "waterfall.png").read_bytes().startswith(b"\x89PNG")
    assert "A call" in (tmp_path / "report.html").read_text()


def test_the_command_is_told_as_it_can_be_typed_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert own_command() == ".venv/bin/voiceloop"
    (tmp_path / "voiceloop").touch(mode=0o755)
    assert own_command() == "voiceloop"


@pytest.mark.virtual_time
async def test_a_whole_call_ends_with_what_to_do_next(
    clock: Callable[[], float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    utterances = load_utterances(load_call(), "heart", RATE_HZ)[2:3]
    told = io.StringIO()
    console = Terminal(file=told, width=200)
    monkeypatch.setattr("clients.demo.SimulatedCall", partial(SimulatedCall, clock=clock))
    async with memory_call(clock) as (connection, _):
        server = ServerProcess(pid=0, port=0, ready_s=1.0)
        await play(
            connection, utterances, DemoOptions(out=tmp_path), console, server, "A call", CARD
        )
    *_, last = told.getvalue().strip().splitlines()
    assert last == f"talk to it yourself: {own_command()} serve"


async def test_the_agents_card_says_who_answers_or_that_nobody_told() -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Bearer a-key" in head
        body = answers.pop(0)
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    models = {"recognizer": "ears", "language_model": "brain", "voice": ""}
    card = {"name": "Ava", "models": models, "client_tools": ["book"]}
    answers = [json.dumps(card), '{"name": "Ava"}']
    server = await asyncio.start_server(tell, "127.0.0.1", 0)
    async with server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/realtime"
        assert await read_card(url, "a-key") == replace(CARD, client_tools=("book",))
        with pytest.raises(ConnectionFailed, match="expected the agent's card"):
            await read_card(url, "a-key")
