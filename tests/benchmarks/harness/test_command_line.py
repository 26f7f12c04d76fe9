"""The command lines of the benchmarks: help, wrong values, missing data, early ends, `--check`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks import (
    backchannels,
    capacity,
    engine_bench,
    gpu_first_run,
    heard_history,
    overload,
    recognizer_bench,
    speech_bench,
    tool_turn,
    turn_latency,
)
from benchmarks.calls import human_turns
from benchmarks.endpointing import __main__ as endpointing
from benchmarks.harness.command_line import INTERRUPTED, Benchmark
from benchmarks.harness.data_folder import DataMissing, data_with
from benchmarks.harness.harness import Bar
from benchmarks.peers import __main__ as peers
from benchmarks.peers import stub_services
from clients.errors import ClientError, OutputError
from tests.tables import each_row

ROOM = Path(turn_latency.__file__).parent
FOREIGN = {"livekit_agent", "pipecat_agent"}  # in environments of their own


def modules(*patterns: str) -> list[str]:
    return sorted(
        f"benchmarks.{'.'.join(path.relative_to(ROOM).with_suffix('').parts)}"
        for pattern in patterns
        for path in ROOM.glob(pattern)
        if path.stem not in {"__init__", *FOREIGN}
    )


COMMANDS = modules("*.py", "*/__main__.py")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results go under the working folder."""
    monkeypatch.chdir(tmp_path)


def call(monkeypatch: pytest.MonkeyPatch, main: Callable[[], int], *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    return main()


@each_row("name", COMMANDS)
def test_every_command_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(monkeypatch, import_module(name).main, "--help")
    assert ended.value.code == 0
    assert "usage: python -m benchmarks." in capsys.readouterr().out


@each_row("name", modules("*/*.py"))
def test_every_part_finds_what_it_needs(name: str) -> None:
    import_module(name)


@each_row(
    ("main", "arguments", "expected"),
    [
        (turn_latency.main, ["--turns", "0"], "--turns: expected a whole number of at least 1"),
        (turn_latency.main, ["--endpoint-ms", "200"], "--endpoint-ms: expected --fakes with it"),
        (turn_latency.main, ["--fakes", "--ablate"], "expected one of --fakes and --ablate"),
        (turn_latency.main, ["--ablate", "--check"], "expected it without --ablate embedded"),
        (turn_latency.main, ["--ablate", "ends", "--check"], "expected it without --ablate ends"),
        (peers.main, ["--delays-ms", "0,0,0"], "--delays-ms: expected four numbers of ms"),
        (peers.main, ["--delays-ms", "0,0,0,nan"], "--delays-ms: expected a number of ms"),
        (peers.main, ["--turns", "2", "--barge-ins", "3"], "--barge-ins: expected at most --turns"),
        (capacity.main, ["--turns", "9"], "--turns: expected a whole number of 1 to 8"),
        (heard_history.main, ["--cuts", "0"], "--cuts: expected a whole number of at least 3"),
        (tool_turn.main, ["--tool-ms", "-1"], "--tool-ms: expected a whole number of at least 0"),
        (overload.main, ["--times", "1"], "--times: expected a number of times above 1"),
        (speech_bench.main, ["--folder", "kokoro"], "--folder: expected NAME=PATH with a name of"),
        (speech_bench.main, ["--folder", "kokoro=none"], "--folder: expected a folder of kokoro's"),
        (engine_bench.main, ["--model", "none"], "--model: expected a model in none"),
        (engine_bench.main, ["--part", "x"], "--part: invalid choice"),
        (gpu_first_run.main, ["--part", "x"], "--part: invalid choice"),
        (endpointing.main, ["--check", "--fit"], "--check: expected --fit"),
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
    for main, arguments in ((recognizer_bench.main, ()), (endpointing.main, ("--no-p-end",))):
        with pytest.raises(DataMissing):
            call(monkeypatch, main, *arguments)


def test_results_that_cannot_be_written_are_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").touch()
    for main in (backchannels.main, capacity.main, peers.main):
        with pytest.raises(OutputError, match="expected a folder that can be written into"):
            call(monkeypatch, main)


def command(work: BaseException | None, *arguments: str) -> Benchmark:
    """A benchmark whose measuring ends so."""

    async def measure() -> None:
        if work is not None:
            raise work

    made = Benchmark("bench", "", seed="nothing")
    made.parse(arguments)
    made.measure(measure())
    return made


def test_an_early_end_says_why_and_is_not_judged() -> None:
    missed = [Bar("x", 3.0, 2.0)]
    assert command(None).finish({}, missed) == 0
    assert command(None, "--check").finish({}, missed) == 1
    assert command(None, "--check").finish({}, [Bar("x", 1.0, 2.0)]) == 0
    stopped = command(KeyboardInterrupt(), "--check")
    assert (stopped.partial, stopped.finish({}, missed)) == (INTERRUPTED, 130)
    broken = command(ClientError("the server hung up"), "--check")
    assert (broken.partial, broken.finish({}, missed)) == ("the server hung up", 2)
    written = [
        json.loads(path.read_text()) for path in Path("out/benchmarks").glob("*-partial.json")
    ]
    assert all(data["bars"] == [] for data in written)


@pytest.mark.call(seconds=20)
def test_a_command_measures_at_its_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("--fakes", "--most", "1", "--turns", "1", "--times", "2")
    assert call(monkeypatch, overload.main, *arguments) == 0
    [written] = Path("out/benchmarks").glob("*-2*.json")
    assert json.loads(written.read_text())["partial"] is None
