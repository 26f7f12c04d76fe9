"""A Python tool runs in a process of its own, which may block, crash and print as it likes."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.voiceloop.tools import author_tools
from tests.waiting import until
from voiceloop.errors import ConfigError
from voiceloop.tools import python_tool
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
async def running(function: str) -> AsyncIterator[PythonTool]:
    tool = PythonTool("tool", f"author_tools:{function}", FOLDER)
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
        await until(lambda: not process._abandoned)  # its process says that it has stopped
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
    monkeypatch.setattr(python_tool, "ABANDON_S", 0.05)
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
