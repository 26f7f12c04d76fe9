"""The command lines of the benchmarks: wrong values, missing data, and early ends."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import (
    backchannels,
    capacity,
    engine_bench,
    gpu_first_run,
    heard_history,
    recognizer_bench,
    speech_bench,
    tool_turn,
    turn_latency,
)
from benchmarks.calls import human_turns
from benchmarks.endpointing import __main__ as endpointing
from benchmarks.harness.command_line import INTERRUPTED, early_end, exit_code
from benchmarks.harness.data_folder import DataMissing, data_with
from benchmarks.harness.harness import Bar, results, write_results
from benchmarks.peers import __main__ as peers
from benchmarks.peers import stub_services
from clients.call.result import CallResult
from clients.errors import ClientError, OutputError


def call(monkeypatch: pytest.MonkeyPatch, main: Callable[[], int], *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    return main()


@pytest.mark.parametrize(
    ("main", "arguments", "expected"),
    [
        (turn_latency.main, ["--turns", "0"], "--turns: expected a whole number of at least 1"),
        (turn_latency.main, ["--endpoint-ms", "200"], "--endpoint-ms: expected --fakes with it"),
        (turn_latency.main, ["--fakes", "--ablate"], "expected one of --fakes, --ablate and"),
        (turn_latency.main, ["--ablate", "--check"], "expected it without --ablate embedded"),
        (turn_latency.main, ["--ablate", "ends", "--check"], "expected it without --ablate ends"),
        (turn_latency.main, ["--variant", "a"], "--variant: expected NAME=ARGUMENTS"),
        (turn_latency.main, ["--variant", "../a="], "--variant: expected NAME=ARGUMENTS"),
        (turn_latency.main, ["--variant", 'a="'], "--variant: expected arguments as a shell"),
        (turn_latency.main, ["--variant", "a=", "--variant", "a="], "expected each name once"),
        (peers.main, ["--delays-ms", "0,0,0"], "--delays-ms: expected four numbers of ms"),
        (peers.main, ["--delays-ms", "0,0,0,nan"], "--delays-ms: expected a number of ms"),
        (peers.main, ["--turns", "2", "--barge-ins", "3"], "--barge-ins: expected at most --turns"),
        (capacity.main, ["--turns", "9"], "--turns: expected a whole number of 1 to 8"),
        (heard_history.main, ["--cuts", "0"], "--cuts: expected a whole number of at least 3"),
        (tool_turn.main, ["--calls", "0"], "--calls: expected a whole number of at least 1"),
        (tool_turn.main, ["--tool-ms", "-1"], "--tool-ms: expected a whole number of at least 0"),
        (recognizer_bench.main, ["--most", "0"], "--most: expected a whole number of at least 1"),
        (speech_bench.main, ["--seconds", "inf"], "--seconds: expected a number of seconds above"),
        (speech_bench.main, ["--folder", "vits"], "--folder: expected NAME=PATH with a name of"),
        (speech_bench.main, ["--folder", "vits=none"], "--folder: expected a folder of vits's"),
        (engine_bench.main, ["--threads", "0"], "--threads: expected a whole number of at least 1"),
        (engine_bench.main, ["--model", "none"], "--model: expected a model in none"),
        (engine_bench.main, ["--part", "x"], "--part: expected of token_time"),
        (gpu_first_run.main, ["--part", "x"], "--part: expected of kernels"),
        (endpointing.main, ["--check", "--source", "pocketsphinx"], "--check: expected a source"),
        (endpointing.main, ["--model", "none"], "--model: expected a model in none"),
        (stub_services.main, ["--port", "0"], "--port: expected a whole number of 1 to 65535"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(
    main: Callable[[], int],
    arguments: list[str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, main, *arguments)
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_data_that_is_not_there_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "speech").mkdir()
    with pytest.raises(DataMissing, match="found no dialogues there: set VOICELOOP_DATA"):
        data_with("speech", "dialogues", folder=tmp_path)
    assert data_with("speech", folder=tmp_path) == tmp_path
    monkeypatch.setenv("VOICELOOP_DATA", str(tmp_path / "none"))
    with pytest.raises(DataMissing, match=r"none, found no such folder"):
        human_turns.human_turns("plain", 1)
    with pytest.raises(DataMissing):
        call(monkeypatch, recognizer_bench.main)
    monkeypatch.setattr(endpointing, "RESULTS", tmp_path)
    with pytest.raises(DataMissing):
        call(monkeypatch, endpointing.main, "--no-p-end")


def test_results_that_cannot_be_written_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").touch()
    for module in (backchannels, capacity, endpointing, heard_history, peers):
        monkeypatch.setattr(module, "RESULTS", tmp_path / "out")
        with pytest.raises(OutputError, match="expected a folder that can be written into"):
            call(monkeypatch, module.main)
    for module in (speech_bench, recognizer_bench):
        monkeypatch.setattr(module, "data_with", lambda *_, **__: tmp_path, raising=False)
        with pytest.raises(OutputError, match="expected a folder that can be written into"):
            call(monkeypatch, module.main, "--out", str(tmp_path / "out"))


def test_an_early_end_says_why() -> None:
    async def work(error: BaseException | None) -> None:
        if error is not None:
            raise error

    assert early_end(work(None)) is None
    assert early_end(work(ClientError("the server hung up"))) == "the server hung up"
    assert early_end(work(KeyboardInterrupt())) == INTERRUPTED
    missed = [Bar("x", 3.0, 2.0)]
    assert exit_code(missed, None, is_checked=False) == 0
    assert exit_code(missed, None, is_checked=True) == 1
    assert exit_code((), INTERRUPTED, is_checked=True) == 130
    assert exit_code((), "the server hung up", is_checked=True) == 2


def test_the_results_of_a_part_are_named_as_one(tmp_path: Path) -> None:
    whole = write_results(results("bench", 0, {}, []), tmp_path)
    part = write_results(results("bench", 0, {}, [], partial=INTERRUPTED), tmp_path)
    assert json.loads(whole.read_text())["partial"] is None
    assert json.loads(part.read_text())["partial"] == INTERRUPTED
    assert part.name.endswith("-partial.json")
    assert not whole.name.endswith("-partial.json")


@pytest.mark.parametrize("n_calls", [0, 1])
def test_interrupted_calls_leave_those_that_had_ended(
    n_calls: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def measure(settings: object, measured: dict[str, turn_latency.Measured]) -> None:
        measured["fakes"].calls += [CallResult("slt", "", (), (), 0, 0)] * n_calls
        await asyncio.sleep(0)
        raise KeyboardInterrupt

    monkeypatch.setattr(turn_latency, "measure", measure)
    monkeypatch.setattr(turn_latency, "prepare_folder", lambda folder: None)
    monkeypatch.setattr(turn_latency, "write_results", lambda data: write_results(data, tmp_path))
    assert call(monkeypatch, turn_latency.main, "--fakes", "--check") == 130
    written = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert [(data["partial"], data["bars"]) for data in written] == [(INTERRUPTED, [])] * n_calls
    assert ("nothing is written" in capsys.readouterr().err) == (n_calls == 0)


def test_a_set_without_recorded_noise_says_that_it_is_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def heard(recordings: list[Path], cast: str) -> None:
        assert recordings == []
        raise ClientError("so far")

    monkeypatch.setenv("VOICELOOP_DATA", str(tmp_path))
    monkeypatch.setattr(backchannels, "RESULTS", tmp_path)
    monkeypatch.setattr(backchannels, "sounds", heard)
    with pytest.raises(ClientError, match="so far"):
        call(monkeypatch, backchannels.main)
    assert "A SMALLER SET: no recorded noise" in capsys.readouterr().err
