"""`voiceloop bench` of Realtime endpoints: a script of one's own against a scripted server."""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from clients import loadgen
from clients.bench.arguments import add_bench_arguments
from clients.bench.command import run_bench
from clients.call.script import load_call, load_utterances
from clients.errors import CallScriptError, ClientError, RecordingError
from clients.recording import write_wav
from tests.clients.mock_server import mock_server
from tests.tables import each_row

TURN = '[[turns]]\nname = "{0}"\ntext = "{0}"\nfile = "{0}.wav"\nafter = "{1}"\nwait_ms = 100\n'


def script_in(folder: Path, *turns: tuple[str, str]) -> Path:
    """A script whose recordings are 400 ms of noise between silences of 100."""
    for name, _ in turns:
        noise = np.random.default_rng(len(name)).normal(0, 4000, 6400).astype(np.int16)
        quiet = np.zeros(1600, np.int16)
        write_wav(folder / f"{name}.wav", (np.concatenate([quiet, noise, quiet]),), 16_000)
    path = folder / "call.toml"
    path.write_text("".join(TURN.format(*turn) for turn in turns))
    return path


async def bench(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_bench_arguments(parser)
    return await asyncio.to_thread(run_bench, parser.parse_args(argv))


def test_a_script_of_ones_own_is_one_voice_whose_recordings_lie_beside_it(tmp_path: Path) -> None:
    script = load_call(script_in(tmp_path, ("hello", "agent"), ("stop", "barge_in")))
    assert script.voices == ("",) and [turn.name for turn in script.turns] == ["hello", "stop"]
    for utterance in load_utterances(script, "", 24_000):
        assert utterance.turn.expect == ()
        assert (utterance.onset, utterance.end) == pytest.approx((2400, 12_000), abs=240)


@each_row(
    ("text", "found"),
    [
        ('turns = "hello"', r"expected \[\[turns\]\]"),
        (TURN.format("a", "agent") * 201, "1 to 200, found 201"),
        (TURN.format("a", "agent") + "wait_ms = 1", "found a mistake: Cannot overwrite"),
        (TURN.format("a", "agent").replace("100", '"soon"'), "expected wait_ms = 0 to 60000"),
        (TURN.format("a", "agent").replace("100", "inf"), "expected wait_ms = 0 to 60000"),
        (TURN.format("a", "agent") + 'expect = "word"', "expected lists of words as expect"),
        (TURN.format("a", "agent") + "expect = [5]", "expected lists of words as expect"),
        (TURN.format("a", "agent") + 'pause_ms = -1', "expected pause_ms"),
        ("casts = 5\n" + TURN.format("a", "agent"), "expected lists of voices"),
        (TURN.format("a", "agent").replace('"a.wav"', "5"), "expected 'file' in turn 1"),
    ],
)  # fmt: skip
def test_a_script_that_is_none_is_refused(tmp_path: Path, text: str, found: str) -> None:
    path = tmp_path / "call.toml"
    path.write_text(text)
    with pytest.raises(CallScriptError, match=found):
        load_call(path)


def test_recordings_that_cannot_be_measured_are_refused(tmp_path: Path) -> None:
    script = load_call(script_in(tmp_path, ("hello", "agent")))
    (tmp_path / "hello.wav").unlink()
    with pytest.raises(RecordingError, match=r"found no file at .*hello\.wav"):
        load_utterances(script, "", 24_000)
    write_wav(tmp_path / "hello.wav", (np.ones(8000, np.int16),) * 2, 16_000)
    with pytest.raises(RecordingError, match="found stereo"):
        load_utterances(script, "", 24_000)
    write_wav(tmp_path / "hello.wav", (np.ones(601 * 8000, np.int16),), 8_000)
    with pytest.raises(RecordingError, match="at most 600 s"):
        load_utterances(script, "", 24_000)


async def test_a_realtime_endpoint_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
    with pytest.raises(ClientError, match="no call went through: No server answers at"):
        await bench(url, "--script", str(script_in(tmp_path, ("hello", "agent"))))


@pytest.mark.call
async def test_the_gap_of_a_realtime_endpoint_is_measured_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_in(tmp_path, ("hello", "agent"), ("again", "agent"))
    file = tmp_path / "bench.json"
    async with mock_server() as (url, sessions):
        argv = (url, "--script", str(script), "--calls", "2", "--at-once", "2", "--model", "any")
        assert await bench(*argv, "--json", str(file)) == 0
    data = json.loads(file.read_text())
    assert (data["kind"], data["calls"], data["n_turns"]) == ("realtime", 2, 4)
    # The mock waits for 200 ms of frames; a frame that the client sends late shortens that.
    assert data["gap_ms"]["n"] == 4 and 180 <= data["gap_ms"]["p50"]
    assert len(sessions) == 2
    shown = capsys.readouterr().out
    assert "goodput: " in shown and "all turns │" in shown and "hello     │" in shown


@pytest.mark.call
def test_the_load_generator_plays_a_script_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_in(tmp_path, ("hello", "agent"))
    file = tmp_path / "load.json"

    async def play() -> int:
        async with mock_server() as (url, _):
            argv = ["loadgen", url, "--script", str(script), "--json", str(file)]
            monkeypatch.setattr(sys, "argv", argv)
            return await asyncio.to_thread(loadgen.command)

    assert asyncio.run(play()) == 0
    assert json.loads(file.read_text())["n_turns"] == 1
