"""A kept call played again: in a fraction of its time, with its tools' results, and the same."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.callers import Caller
from tests.fakes import EnergyVad, FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends, ToolCall
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.operation import RecordingSettings
from voiceloop.recording.recorder import Recorder
from voiceloop.replay import command, player
from voiceloop.replay.clock import SkippingLoop
from voiceloop.replay.command import read_all
from voiceloop.replay.compare import Comparison, compare
from voiceloop.replay.kept import read_kept
from voiceloop.tools.executor import ToolFailed

SAID = ["a table for four", "thank you"]
TOOL = AgentTool("book", "Books a table.", {"type": "object", "properties": {}})
LOOK = AgentTool("look", "Looks.", {"type": "object", "properties": {}}, url="http://127.0.0.1:9/")
AGENT = AgentConfig(greeting="Hello.", tools=(TOOL, LOOK))


def backends(words: list[str] = SAID) -> Backends:
    booked = Reply("", tool_calls=(ToolCall("call_1", "book", "{}"),))
    model = FakeLanguageModel([booked, "It is booked.", "Bye."], ttft_ms=120)
    return instant_backends(recognizer=FakeRecognizer(words), language_model=model)


async def a_kept_call(folder: Path) -> None:
    clock = asyncio.get_running_loop().time
    config = Config(recording=RecordingSettings(folder=folder, consent="none"))
    recorder = Recorder(config, AGENT, clock, lambda outcome: None)
    async with Caller(clock, backends(), AGENT, config=config, recordings=recorder) as caller:
        await caller.say(1200)
        await caller.listen_until("response.function_call_arguments.done")
        answer_tool(caller)
        await caller.listen_until("voiceloop.timeline", count=3)  # the greeting's is the first
        await caller.say(1200)
        await caller.listen_until("voiceloop.timeline", count=4)
    await asyncio.to_thread(recorder.close)


def answer_tool(caller: Caller) -> None:
    (call,) = [
        one.event["item"]
        for one in caller.of("response.output_item.done")
        if one.event["item"]["type"] == "function_call"
    ]
    item = {"type": "function_call_output", "call_id": call["call_id"], "output": "table 7"}
    caller.send("conversation.item.create", item=item)
    caller.send("response.create")


def in_skipped_time(work: Callable[[], Any]) -> Any:
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, SkippingLoop)
        loop.skip_while(lambda: True)  # fakes compute nothing
        return runner.run(work())


def test_time_in_which_nothing_is_computed_is_skipped_and_other_time_is_not() -> None:
    async def sleeps() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.sleep(3600.0)
        await asyncio.to_thread(time.sleep, 0.2)
        return loop.time() - began_s, 0.0

    began_s = time.monotonic()
    passed_s, _ = in_skipped_time(sleeps)
    assert 3600.2 <= passed_s < 3610.0
    assert time.monotonic() - began_s < 60.0


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[Backends]:
    """The models of the next replays; the last of them of all that follow."""
    chosen = [backends()]

    @asynccontextmanager
    async def opened(*_: Any, **__: Any) -> AsyncIterator[tuple[Backends, Callable[[], bool]]]:
        yield (chosen.pop(0) if len(chosen) > 1 else chosen[0]), lambda: True

    monkeypatch.setattr(player, "open_backends", opened)
    return chosen


async def played_again(path: Path, out: Path) -> Comparison:
    async with player.opened_player(Config(), AGENT, out) as opened:
        opened._gateway.calls.new_vad = EnergyVad
        kept = read_kept(path)
        return Comparison(compare(kept.name, kept.notes, await opened.play(kept)))


def test_a_call_played_again_is_the_same_and_its_tools_answer_as_they_did(
    tmp_path: Path, faked: list[Backends]
) -> None:
    in_skipped_time(lambda: a_kept_call(tmp_path))
    (path,) = tmp_path.glob("*.json")
    comparison = in_skipped_time(lambda: played_again(path, tmp_path / "out"))
    assert len(comparison.pairs) == 2
    assert comparison.told()["differing"] == []
    (again,) = (tmp_path / "out").glob("*.json")
    notes = json.loads(again.read_text())
    assert [one["output"] for one in notes["results"]] == ["table 7"]
    assert "It is booked." in json.dumps(notes["turns"])


def test_two_players_share_the_calls_which_are_told_of_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake(config: Config, out: Path, is_aa: bool, calls: Any) -> tuple[list[Any], float]:
        return [((call, "first"), (call, "second")) for call in calls], float(len(calls))

    monkeypatch.setattr(command, "_played", fake)
    monkeypatch.setattr(command, "ProcessPoolExecutor", lambda n, _: ThreadPoolExecutor(n))
    monkeypatch.setattr(command.os, "cpu_count", lambda: 2)
    for config, expected_s in (
        (Config(preset="embedded"), 3.0),
        (Config(preset="embedded", stt_url=("http://127.0.0.1:9/v1",)), 5.0),
    ):
        calls: Any = "abcde"
        comparison, took_s = command._compared(config, calls, tmp_path, is_aa=False)
        assert took_s == expected_s  # of the longer share
        assert comparison.pairs == tuple((one, n) for one in calls for n in ("first", "second"))


async def test_a_tool_of_the_server_acts_no_more_and_says_what_it_said() -> None:
    results = {("look", '{"a": 1}'): [("found", 0.0)]}
    executor = player.RecordedResults("look", results)
    assert await executor.run("key", {"a": 1}) == "found"
    with pytest.raises(ToolFailed) as failed:
        await executor.run("key", {"a": 2})
    assert failed.value.told == "not found"


def test_what_other_models_make_of_the_same_caller_is_found(
    tmp_path: Path, faked: list[Backends]
) -> None:
    in_skipped_time(lambda: a_kept_call(tmp_path))
    (path,) = tmp_path.glob("*.json")
    faked[:] = [backends(["a table for floor", "thank you"])]
    comparison = in_skipped_time(lambda: played_again(path, tmp_path / "out"))
    (first,) = comparison.told()["differing"]
    assert first["words"] == ("a table for four", "a table for floor")


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "found a mistake"), ("[]", "form"), ('{"form": 1, "turns": 3}', "turns"), (None, "none")],
)
def test_files_that_are_no_kept_call_are_refused_by_what_was_found(
    tmp_path: Path, text: str | None, found: str
) -> None:
    if text is not None:
        (tmp_path / "sess_1~.json").write_text(text)
    with pytest.raises(ConfigError, match=found):
        read_kept(tmp_path / "sess_1~.json")


def test_a_folder_is_played_without_the_calls_in_which_nobody_spoke(tmp_path: Path) -> None:
    in_skipped_time(lambda: a_kept_call(tmp_path))
    (spoken,) = tmp_path.glob("*.json")
    typed = tmp_path / "sess_typed.json"
    typed.write_bytes(spoken.read_bytes())
    typed.with_suffix(".flac").write_bytes(b"fLaC" + bytes(22))
    calls, left_out = read_all([tmp_path])
    assert [call.name for call in calls] == [spoken.stem.partition(".")[0]]
    assert len(left_out) == 1 and "sess_typed.flac" in left_out[0]
    with pytest.raises(ConfigError, match="sess_typed"):
        read_all([typed])
