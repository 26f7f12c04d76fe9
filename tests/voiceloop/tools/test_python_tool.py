"""A Python tool runs in a process of its own, which may block, crash and print as it likes."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import platform
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.voiceloop.tools import author_tools
from tests.waiting import is_running, until
from voiceloop import cell
from voiceloop.errors import ConfigError
from voiceloop.tools import python_line
from voiceloop.tools.executor import ToolFailed
from voiceloop.tools.python_host import Host, find_function
from voiceloop.tools.python_messages import (
    HEADER_BYTES,
    Abandon,
    Call,
    Returned,
    answer_of,
    packed,
)
from voiceloop.tools.python_tool import PythonTool

FOLDER = str(Path(__file__).parent)


@asynccontextmanager
async def running(function: str, *, has_network: bool = False) -> AsyncIterator[PythonTool]:
    tool = PythonTool("tool", f"author_tools:{function}", FOLDER, has_network=has_network)
    await tool.start()
    try:
        yield tool
    finally:
        await tool.close()


async def test_a_function_is_called_by_name_and_its_prints_harm_nothing() -> None:
    async with running("price") as tool:
        for n in (1, 2):
            found = json.loads(await tool.run("c", {"kind": "latte", "n": n}))
            assert found == {"kind": "latte", "cost": 3 * n}


async def test_a_coroutine_function_is_awaited_and_text_stays_text() -> None:
    async with running("hours") as tool:
        asked = (tool.run("c", {"day": day}) for day in ("Monday", "Sunday"))
        assert await asyncio.gather(*asked) == ["Monday: nine to five", "Sunday: nine to five"]


@pytest.mark.parametrize(("function", "arguments", "words"), [
    ("fail", {}, "ValueError$"),
    ("price", {"colour": "red"}, "TypeError"),
    ("odd", {}, "TypeError"),
    ("long", {}, "ValueError$"),
])  # fmt: skip
async def test_a_failure_of_the_function_ends_its_call_alone(
    function: str, arguments: dict[str, Any], words: str
) -> None:
    async with running(function) as tool:
        for _ in range(2):  # and the process goes on
            with pytest.raises(ToolFailed, match=words) as caught:
                await tool.run("c", arguments)
            assert caught.value.told == "failed" and not caught.value.may_help


@pytest.mark.parametrize("function", ["crash", "exit_on_purpose"])
async def test_a_process_that_ends_fails_its_calls_and_the_next_call_has_another(
    function: str,
) -> None:
    async with running(function) as tool:
        for _ in range(2):
            with pytest.raises(ToolFailed):
                await tool.run("c", {})


@pytest.mark.parametrize(("spec", "words"), [
    ("no_such_module:f", "no module 'no_such_module' beside the agent file"),
    ("author_tools.no_part:f", "no module 'author_tools.no_part'"),
    ("author_tools:nothing", "has no 'nothing'"),
    ("author_tools:annotations", "is no function"),
])  # fmt: skip
async def test_a_function_that_is_not_there_ends_the_start(spec: str, words: str) -> None:
    tool = PythonTool("price", spec, FOLDER)
    with pytest.raises(ConfigError, match=words) as caught:
        await tool.start()
    assert caught.value.message.startswith("tool 'price': python: expected the function")
    await tool.close()


def test_only_a_module_that_is_there_and_fails_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "needs_another.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LookupError, match="no module 'mistyped'"):
        find_function("mistyped:f")
    assert capsys.readouterr().err == ""
    with pytest.raises(LookupError, match="'needs_another' cannot be imported .*no_such_package"):
        find_function("needs_another:f")
    assert "needs_another.py" in capsys.readouterr().err


async def test_a_coroutine_that_nobody_waits_for_stops_and_its_process_stays() -> None:
    async with running("wait") as tool:
        process = await tool._process()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tool.run("c", {})
        await until(lambda: not process.line._abandoned)  # its process says that it has stopped
        assert process.is_taking and await tool._process() is process


@pytest.mark.parametrize("function", ["wait", "block"])
async def test_a_call_that_is_abandoned_as_it_arrives_is_answered_and_never_begun(
    function: str,
) -> None:
    answers, requests = io.BytesIO(), asyncio.StreamReader()
    host = Host(getattr(author_tools, function), answers)
    requests.feed_data(packed(Call(7, {})) + packed(Abandon(7)))  # in one read
    requests.feed_eof()
    await host.serve(requests)
    for _ in range(3):  # cancelled, over, answered
        await asyncio.sleep(0)
    assert answer_of(answers.getvalue()[HEADER_BYTES:]) == Returned(7, problem="abandoned")
    assert not host._calls


async def test_a_function_that_does_not_stop_loses_its_process_and_no_other_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(python_line, "ABANDON_S", 0.05)
    async with running("mixed") as tool:
        first = await tool.run("c", {"how": "id"})
        process = await tool._process()
        held = asyncio.create_task(tool.run("c", {"how": "block"}))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await tool.run("c", {"how": "block"})
        await until(lambda: not process.is_taking)
        second = await tool.run("c", {"how": "id"})
        assert second != first and not held.done() and not process.has_ended
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        await process._process.wait()  # ended, for nobody waits for it any more
        assert await tool.run("c", {"how": "id"}) == second != str(os.getpid())


async def test_closing_fails_the_calls_under_way() -> None:
    tool = PythonTool("tool", "author_tools:block", FOLDER)
    await tool.start()
    asked = asyncio.create_task(tool.run("c", {}))
    await asyncio.sleep(0)
    await tool.close()
    await tool.close()
    with pytest.raises(ToolFailed, match="its process ended"):
        await asked
    with pytest.raises(ToolFailed, match="closed"):
        await tool.run("c", {})


async def test_a_function_has_none_of_the_servers_own_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("VOICELOOP_KEYS", "a secret")
    monkeypatch.setenv("SHOP_KEY", "the shop's")
    async with running("variables") as tool:
        found = json.loads(await tool.run("c", {}))
    assert found["SHOP_KEY"] == "the shop's"  # as an author reads them
    assert not [name for name in found if name.startswith("VOICELOOP_")]


async def test_a_module_where_the_server_was_started_stands_for_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "msgspec.py").write_text("raise SystemExit('taken over')")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.chdir(tmp_path)
    async with running("process_id") as tool:
        assert int(await tool.run("c", {})) != os.getpid()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads of processes in /proc")
async def test_what_a_function_started_ends_with_its_process(tmp_path: Path) -> None:
    async with running("start_another") as tool:
        started = int(await tool.run("c", {}))
        assert is_running(started)
    await until(lambda: not is_running(started))
    path = tmp_path / "pid"
    async with running("crash_beside_another") as tool:
        with pytest.raises(ToolFailed):
            await tool.run("c", {"path": str(path)})
        await until(lambda: not is_running(int(path.read_text())))


needs_filter = pytest.mark.skipif(not cell.can_filter(), reason="no system calls are filtered here")


@needs_filter
async def test_a_function_has_the_network_only_where_its_tool_says_so() -> None:
    async with running("open_socket") as tool:
        assert await tool.run("c", {"family": "AF_UNIX"}) == "opened"
        for family in ("AF_INET", "AF_INET6", "AF_NETLINK"):
            with pytest.raises(ToolFailed, match="PermissionError"):
                await tool.run("c", {"family": family})
    async with running("open_socket_in_another") as tool:  # nor what it starts
        assert await tool.run("c", {}) == "1"
    async with running("open_socket", has_network=True) as tool:
        assert await tool.run("c", {"family": "AF_INET"}) == "opened"


@needs_filter
@pytest.mark.parametrize("has_network", [False, True])
async def test_a_function_reaches_into_no_other_process(has_network: bool) -> None:
    at = ("x86_64", "aarch64").index(platform.machine())
    async with running("reach", has_network=has_network) as tool:
        for numbers in cell._REACHING.values():
            assert await tool.run("c", {"number": numbers[at]}) == f"-1 {errno.EPERM}"


async def test_a_function_that_fills_memory_fails_its_call_alone() -> None:
    async with running("fill") as tool:
        with pytest.raises(ToolFailed, match="MemoryError"):
            await tool.run("c", {"n_bytes": cell.TOOL_BYTES})
        assert await tool.run("c", {"n_bytes": 3}) == "3"
    async with running("limits") as tool:
        assert json.loads(await tool.run("c", {})) == [0, cell.TOOL_FILES]
