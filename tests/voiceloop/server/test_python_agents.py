"""Agents that are Python classes, served: real processes, real sockets."""

import json
import logging
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import voiceloop
from tests.fakes import FakeLanguageModel, instant_backends
from tests.voiceloop.server.test_app import Running, running, until
from tests.voiceloop.server.test_resume import say
from tests.waiting import is_running
from tests.waiting import until as waited
from voiceloop.agent_file import load_agent
from voiceloop.backends import ChatMessage
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.reply import agent_hooks
from voiceloop.server.app import Gateway
from voiceloop.tools.agent_class import AgentClass
from voiceloop.tools.caller import Caller
from voiceloop.tools.executor import ToolFailed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")

DESK = '''
from typing import Literal
import pathlib, time
from voiceloop.python_agent import Agent, Answer, tool

class Desk(Agent):
    name = "Desk"
    instructions = "You sit at the desk."
    fallback = "Once more, please."

    def on_call(self):
        self.asked = 0
        return "Good day." if self.caller["call"] else None

    @tool(side_effect_free=True)
    def opening_hours(self, day: Literal["monday", "sunday"], n: int = 1) -> dict:
        """When the desk is open."""
        self.asked += n
        return {"day": day, "asked": self.asked}

    @tool
    async def raises(self) -> str:
        """Fails."""
        raise ValueError("a secret of the caller")

    @tool
    def sleeps(self) -> None:
        """For ever."""
        while True:
            time.sleep(0.01)

    def on_user_turn(self, words):
        if "emergency" in words:
            return Answer("Please call 112.")
        if "loop" in words:
            while True:
                pass
        if "price" in words:
            return "A coffee costs two euros."
        if "type" in words or words == "null":
            return words

    def on_end(self):
        pathlib.Path(__file__).with_name("ended").write_text(str(self.asked))
'''


def written(folder: Path, text: str = DESK) -> Path:
    path = folder / "desk.py"
    path.write_text(text)
    return path


def notes(said: Sequence[ChatMessage]) -> str:
    """Answers with what stands behind the caller's words."""
    return said[-1].behind.strip() or "nothing known"


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hook that returns is waited for, however busy this machine is."""
    monkeypatch.setattr(agent_hooks, "ON_TURN_MS", 1000.0)
    monkeypatch.setattr(agent_hooks, "ON_CALL_S", 10.0)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Running]:
    agent = load_agent(folder / "desk.py")
    backends = instant_backends(language_model=FakeLanguageModel(notes))
    async with running(Config(agent=folder / "desk.py"), backends, agent=agent) as server:
        toolbox = server.gateway.calls.toolbox
        await toolbox.start()
        try:
            yield server
        finally:
            await toolbox.close()


def test_a_class_is_an_agent_file(tmp_path: Path) -> None:
    agent = load_agent(written(tmp_path))
    assert (agent.name, agent.python) == ("Desk", "desk:Desk")
    hours = agent.tool("opening_hours")
    assert hours is not None and hours.side_effect_free
    assert hours.description == "When the desk is open."
    assert hours.parameters["properties"]["day"] == {"enum": ["monday", "sunday"]}
    assert hours.parameters["required"] == ["day"]
    beside = tmp_path / "desk.toml"
    beside.write_text('python = "desk:Desk"\ninstructions = "Be brief."')
    told = load_agent(beside)
    assert told.instructions == "Be brief." and told.tools == agent.tools


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import nowhere", "No module named 'nowhere'"),
        ("x = 1", "expected one class of Agent in 'desk', found 0"),
        (DESK.replace('day: Literal["monday", "sunday"]', "day"), "a type for 'day'"),
        (DESK.replace("fallback", "fall_back"), "fall_back"),
        ("raise SystemExit", "its process ended"),
    ],
)
def test_a_class_that_is_wrong_is_named_at_the_start(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_agent(written(tmp_path, text))


async def test_a_class_answers_adds_notes_and_greets(tmp_path: Path) -> None:
    written(tmp_path)
    async with serving(tmp_path) as server, server.connect("?greeting=1") as client:
        greeted = await until(client, "response.output_audio_transcript.done")
        assert greeted["transcript"] == "Good day."
        await until(client, "response.done")
        assert await say(client, "an emergency") == "Please call 112."
        assert "A coffee costs two euros." in await say(client, "the price please")
        assert await say(client, "hello") == "nothing known"


async def test_the_first_agent_of_a_folder_finds_its_class_beside_its_file(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "shop.toml").write_text('python = "desk:Desk"')
    agent = load_agent(tmp_path / "shop.toml")
    gateway = Gateway(Config(agents=tmp_path), agent, others={"shop": agent})
    await gateway.calls.toolbox.start()
    await gateway.calls.toolbox.close()


async def test_a_hook_that_loops_costs_its_turn_and_no_other_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    written(tmp_path)
    async with serving(tmp_path) as server:
        quiet = "?greeting=0"  # who waits meanwhile is not spoken to
        async with server.connect(quiet) as client, server.connect(quiet) as other:
            assert await say(client, "loop") == "nothing known"
            assert await say(other, "an emergency") == "Please call 112."
            await waited(lambda: "a new instance" in caplog.text)
            assert await say(client, "an emergency") == "Please call 112."


async def test_what_a_method_keeps_is_of_its_call_and_ends_with_it(tmp_path: Path) -> None:
    load_agent(written(tmp_path))
    of = AgentClass("desk:Desk", str(tmp_path), has_network=False)
    hours = of.runs("opening_hours")
    await of.start()
    one, other = Caller(call="one"), Caller(call="other")
    for caller in (one, other):
        of.open(caller)
        await of.run("on_call", {}, caller)
    assert json.loads(await hours("k", {"day": "monday", "n": 2}, one))["asked"] == 2
    assert json.loads(await hours("k", {"day": "sunday"}, one))["asked"] == 3
    assert json.loads(await hours("k", {"day": "sunday"}, other))["asked"] == 1
    with pytest.raises(ToolFailed, match="ValidationError"):
        await hours("k", {"day": "friday"}, one)
    with pytest.raises(ToolFailed) as failed:
        await of.run("raises", {}, one)
    assert "secret" not in failed.value.message
    of.end(one)
    await of.close()
    assert (tmp_path / "ended").read_text() == "3"


async def test_a_call_that_ends_as_its_process_is_replaced_leaves_none_behind(
    tmp_path: Path,
) -> None:
    begun = tmp_path / "begun"
    counts = f"open({str(begun)!r}, 'a').write('x'); self.asked = 0"
    load_agent(written(tmp_path, DESK.replace("self.asked = 0", counts)))
    of, caller = AgentClass("desk:Desk", str(tmp_path), has_network=False), Caller(call="one")
    of.open(caller)
    await of.run("on_call", {}, caller)
    of._replace(of._calls["one"], caller)
    of.end(caller)
    await of.close()
    assert begun.read_text() == "x"


STARTS = DESK.replace(
    "def on_end",
    """def on_call(self):
        import subprocess, os
        return f"{os.getpid()} {subprocess.Popen(['sleep', '600']).pid} {os.getppid()}"

    def on_end""",
)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads of processes in /proc")
async def test_what_a_class_starts_ends_with_its_call(tmp_path: Path) -> None:
    load_agent(written(tmp_path, STARTS))
    of = AgentClass("desk:Desk", str(tmp_path), has_network=False)
    callers = [Caller(call=name) for name in ("ends", "goes on", "loses the class")]
    pids = []
    for caller in callers:
        of.open(caller)
        told = (await of.run("on_call", {}, caller)).text
        pids.append([int(word) for word in told.split()])
    of.end(callers[0])
    await waited(lambda: not any(map(is_running, pids[0][:2])))
    assert all(map(is_running, (*pids[1], *pids[2])))
    os.kill(pids[0][2], signal.SIGKILL)  # the class's own process
    await waited(lambda: not is_running(pids[1][0]))
    renewed = await of.run("on_call", {}, callers[1])
    own, started, first = map(int, renewed.text.split())
    assert first != pids[0][2] and is_running(own)
    await of.close()
    await waited(lambda: not is_running(own) and not is_running(started))
    for _, orphan, _ in pids[1:]:
        with suppress(ProcessLookupError):
            os.kill(orphan, signal.SIGKILL)


async def test_the_class_of_the_page_is_served(tmp_path: Path) -> None:
    page = (Path(voiceloop.__file__).parent / "docs" / "YOUR_AGENT.md").read_text(encoding="utf-8")
    [code] = re.findall(r"Save this as `desk.py`:\n\n```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "desk.py").write_text(code)
    async with serving(tmp_path) as server, server.connect() as client:
        assert await say(client, "I have chest pain") == "Please hang up and call 112 now."
        assert "Doctor Lind is away this week." in await say(client, "is Doctor Lind there")
