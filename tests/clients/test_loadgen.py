"""What the load generator counts as well answered, and what it leaves of an interrupted load."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest

from clients import loadgen
from clients.call.result import CallResult, TurnResult
from clients.errors import OutputError
from clients.loadgen import Load, LoadResult, command, goodput_of


def turn(gap_ms: float | None, *, cut_in: bool = False) -> TurnResult:
    return TurnResult(
        "t", "hi", "hi", "hello", (), (), 0.0, 1.0, 1.2, 2.0, gap_ms, gap_ms, cut_in,
        False, False, gap_ms is not None, None, None,
    )  # fmt: skip


def call(*turns: TurnResult) -> CallResult:
    return CallResult("slt", "", turns, (), 0, 0)


def test_goodput_leaves_out_late_unanswered_and_cut_turns_and_broken_calls() -> None:
    load = Load(n_calls=2, within_ms=500.0)
    answered = call(turn(300.0), turn(501.0), turn(None), turn(200.0, cut_in=True))
    result = LoadResult([answered], ["hung up"], elapsed_s=30.0)
    good = goodput_of(load, result, n_turns_a_call=4)
    assert (good.n_good, good.share, good.per_minute) == (1, 1 / 8, 2.0)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["loadgen", *arguments])
    return command()


def test_an_interrupted_load_is_told_and_written_as_the_part_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def one_of_three(load: Load, progress: object, result: LoadResult) -> LoadResult:
        result.calls.append(call(turn(300.0), turn(900.0)))
        raise KeyboardInterrupt

    monkeypatch.setattr(loadgen, "run_load", one_of_three)
    path = tmp_path / "load.json"
    assert run(monkeypatch, "--calls", "3", "--turns", "2", "--json", str(path)) == 130
    written = json.loads(path.read_text())
    assert written["partial"] == "interrupted"
    assert written["goodput"]["share"] == 0.5  # of the call that ended, not of all three
    assert "1 of 3 calls had ended" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_refused_before_a_call_is_placed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loadgen, "run_load", None)
    with pytest.raises(OutputError, match="expected a file that can be written"):
        run(monkeypatch, "--json", str(tmp_path / "missing" / "load.json"))


def test_a_server_that_is_not_there_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{unused.getsockname()[1]}"
    assert run(monkeypatch, url, "--calls", "3", "--ramp", "0") == 2
    captured = capsys.readouterr()
    [line] = captured.err.strip().splitlines()
    assert line.startswith("no call went through: No server answers at")
    assert captured.out == ""
