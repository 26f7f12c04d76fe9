"""The page "Your own agent in ten minutes", followed step by step: its files, its commands."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
import wave
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from clients.server_process import free_port, http_status
from tests.remote_service import Answer, scripted_remote
from voiceloop.models.presets import embedded_model_dir

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "voiceloop" / "docs" / "YOUR_AGENT.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"[Ss]ave (?:this|it) as `([\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL))
COMMANDS: list[str] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
[SHOWN] = re.findall(r"\n\n```\n(.*?)```", PAGE, re.DOTALL)
READY_S = 90.0

# `voiceloop` and `python` of the page, on a port of our own. A server is told its port by the
# environment; `talk` has no other way than its argument.
VOICELOOP = """#!/bin/sh
[ "$1" = talk ] && shift && set -- talk "ws://127.0.0.1:$VOICELOOP_PORT" "$@"
exec {python} -P -m voiceloop "$@"
"""
PYTHON = '#!/bin/sh\nexec {python} "$@"\n'


def call(name: str, **arguments: str) -> Answer:
    function = {"name": name, "arguments": json.dumps(arguments)}
    delta = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    return answer(delta, "tool_calls")


def answer(delta: dict[str, Any], reason: str) -> Answer:
    chunks = [
        {"choices": [{"delta": delta, "finish_reason": None}]},
        {"choices": [{"delta": {}, "finish_reason": reason}]},
    ]
    pieces = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return Answer([*pieces, b"data: [DONE]\n\n"], content_type="text/event-stream")


def text(words: str) -> Answer:
    return answer({"content": words}, "stop")


def said(line: str) -> Answer:
    """What the page shows the model to have answered, as the model's answer."""
    return text(next(one for one in SHOWN.splitlines() if line in one).split(" -> ")[1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, script in (("voiceloop", VOICELOOP), ("python", PYTHON)):
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script.format(python=sys.executable))
        path.chmod(0o755)
    return tmp_path


def environment(folder: Path, port: int) -> Mapping[str, str]:
    return {
        **os.environ,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "VOICELOOP_PORT": str(port),
        "VOICELOOP_PRESET": "embedded",  # whatever this machine has besides
        "VOICELOOP_ANTICIPATION_OFF": "p_end",
    }


async def run(command: str, folder: Path, port: int) -> tuple[int, str]:
    """One block of the page; its exit code, and what it printed."""
    process = await asyncio.create_subprocess_shell(
        command.replace("127.0.0.1:8080", f"127.0.0.1:{port}"),
        cwd=folder,
        env=environment(folder, port),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, printed.decode()


@asynccontextmanager
async def serving(command: str, folder: Path) -> AsyncIterator[int]:
    """A server of the page, in the background as in another terminal; yields its port."""
    port = free_port()
    log = folder / "server.log"
    with log.open("wb") as sink:
        process = await asyncio.create_subprocess_shell(
            f"exec {command}", cwd=folder, env=environment(folder, port), stdout=sink, stderr=sink
        )
    try:
        async with asyncio.timeout(READY_S):
            while await http_status(port, "/readyz") != 200:
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.2)
        yield port
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def write_files(folder: Path, port: int) -> None:
    for name, content in FILES.items():
        (folder / name).write_text(content.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))


def test_the_page_has_the_steps_that_are_followed_here() -> None:
    assert list(FILES) == ["bakery.toml", "bakery_test.py", "desk.py"]
    begins = [command.split("\n")[0].split(" --")[0] for command in COMMANDS]
    assert begins == [
        "voiceloop serve", "curl", "python bakery_test.py", "voiceloop serve",
        "python bakery_test.py",
    ]  # fmt: skip


@pytest.mark.call(seconds=35)
@pytest.mark.timeout(300)
async def test_the_agent_is_served_called_and_tried(folder: Path) -> None:
    if not (embedded_model_dir() / "config.json").exists():
        pytest.skip(f"the embedded agent's weights are not at {embedded_model_dir()}")
    if shutil.which("curl") is None:
        pytest.skip("no curl, which the page uses")
    serve, speak, try_it, _, _ = COMMANDS
    write_files(folder, 0)
    async with serving(serve, folder) as port:
        write_files(folder, port)
        code, printed = await run(speak, folder, port)
        assert code == 0, printed
        with wave.open(str(folder / "call.wav")) as recorded:
            assert recorded.getnchannels() == 2
            assert recorded.getnframes() > 2 * recorded.getframerate()
        code, printed = await run(try_it, folder, port)
    assert code in (0, 1), printed  # the embedded model is not held to the bakery's facts
    assert re.search(r"^[0-3] of 3 turns right$", printed, re.MULTILINE), printed


@pytest.mark.call(seconds=35)
@pytest.mark.timeout(300)
async def test_with_a_model_that_can_every_turn_is_right(folder: Path) -> None:
    serve, try_it = COMMANDS[3:]
    async with scripted_remote() as remote:
        remote.service.say(
            "/chat/completions",
            call("get_price", item="bagel"), said("a bagel"),
            call("place_order", item="scone"), said("a scone"),
            said("Sunday"),
        )  # fmt: skip
        service = f"127.0.0.1:{remote.service.port}"
        write_files(folder, 0)
        async with serving(serve.replace("HOST:8000", service), folder) as port:
            write_files(folder, port)
            code, printed = await run(try_it, folder, port)
    assert (code, printed) == (0, SHOWN)
    asked = [json.loads(body) for body in remote.service.asked("/chat/completions")]
    assert {tool["function"]["name"] for tool in asked[0]["tools"]} == {"get_price", "place_order"}
    assert json.loads(asked[1]["messages"][-1]["content"]) == {"price": "$2.25"}
    assert json.loads(asked[3]["messages"][-1]["content"])["status"] == "ordered"
