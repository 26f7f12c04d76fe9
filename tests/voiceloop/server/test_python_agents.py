"""Agents that are Python classes, served: real processes, real sockets."""

import asyncio
import json
import logging
import os
import re
import select
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

import voiceloop
from clients.call.open_call import CallOptions
from clients.connection import RealtimeConnection, typed
from clients.console.held_call import HeldCall, Say
from tests.fakes import FakeLanguageModel, Reply, instant_backends
from tests.voiceloop.server.test_app import Running, running, until
from tests.voiceloop.server.test_resume import say
from tests.waiting import is_running
from tests.waiting import until as waited
from voiceloop.agent import AgentConfig
from voiceloop.agent_file import load_agent
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.call_manners import CallManners, Transfer
from voiceloop.config import Config
from voiceloop.errors import ConfigError
from voiceloop.reply import agent_hooks
from voiceloop.server.app import Gateway
from voiceloop.tools import agent_class
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
    monkeypatch.setattr(agent_hooks, "IN_TURN_S", 1.0)
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
    await waited(lambda: not is_running(pids[1][0]) and of._calls["goes on"].has_ended)
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


GUARD = '''
import time
from voiceloop.python_agent import Agent, Answer, HandOff, tool

class Desk(Agent):
    name = "Desk"
    instructions = "You sit at the desk."
    fallback = "Once more, please."
    tools = [{
        "name": "price",
        "parameters": {"type": "object", "properties": {"of": {"type": "string"}}},
        "result": {"tea": "2 euros", "*": "unknown"},
    }]
    transfers = [{"name": "billing", "to": "agent:bills"}]

    def on_call(self):
        self.n_turns = 0

    def bad(self, words):
        if "raise" in words:
            raise ValueError
        while "loop" in words:
            time.sleep(0.01)

    def before_reply(self, words):
        self.n_turns += 1
        self.bad(words if "before" in words else "")
        if "how many" in words:
            return Answer(f"{self.n_turns} turns.")
        return "Tea is out." if "tea" in words else None

    def on_sentence(self, sentence):
        self.bad(sentence if "sentence" in sentence else "")
        return {"Secret.": "", "One.": "1."}.get(sentence)

    def on_tool(self, name, arguments):
        self.bad(arguments.get("of", ""))
        if arguments.get("of") == "coffee":
            return {"of": "tea"}
        return Answer("not today") if arguments.get("of") == "wine" else None

    @tool
    def bill(self) -> HandOff:
        """Bills."""
        return HandOff("billing", summary="a bill", say="Off you go.")
'''


def guarded(said: Sequence[ChatMessage]) -> Reply:
    """Says after "say", asks the price after "price", calls for the bill; else tells its notes."""
    last = said[-1]
    verb, _, rest = last.content.partition(" ")
    if last.role == "tool":
        return Reply(f"It is {last.content}.")
    if verb == "price":
        return Reply("", (ToolCall("c1", "price", json.dumps({"of": rest})),))
    if verb == "bill":
        return Reply("", (ToolCall("c2", "bill", "{}"),))
    return Reply(rest if verb == "say" else notes(said))


@asynccontextmanager
async def guarding(folder: Path, **changes: Any) -> AsyncIterator[Running]:
    desk = replace(load_agent(written(folder, GUARD)), **changes)
    bills = AgentConfig(instructions="the bills", greeting="Billing here.")
    (folder / "desk.toml").write_text('python = "desk:Desk"')
    backends = instant_backends(language_model=FakeLanguageModel(guarded))
    others = {"desk": desk, "bills": bills}
    config = Config(agents=folder)
    async with running(config, backends, agent=desk, others=others) as server:
        toolbox = server.gateway.calls.toolbox
        await toolbox.start()
        try:
            yield server
        finally:
            await toolbox.close()


async def ask(client: ClientConnection, words: str, modality: str) -> None:
    await client.send(json.dumps({"type": "conversation.item.create", "item": typed(words)}))
    asked = {"type": "response.create", "response": {"output_modalities": [modality]}}
    await client.send(json.dumps(asked))


async def ended(client: ClientConnection, words: str) -> str:
    """A typed turn whose reply may fail; how it ended."""
    await ask(client, words, "text")
    while True:
        done = (await until(client, "response.done"))["response"]
        if not any(one["type"] == "function_call" for one in done["output"]):
            return str(done["status"])


async def test_a_class_hears_a_turn_before_its_reply_and_once(tmp_path: Path) -> None:
    async with guarding(tmp_path) as server, server.connect("?voiceloop.timeline=1") as client:
        assert "Tea is out." in await say(client, "is there tea")
        assert await say(client, "hello") == "nothing known"
        assert await say(client, "before raise") == "nothing known"
        assert await say(client, "how many") == "4 turns."
        told = (await until(client, "voiceloop.timeline"))["timeline"]
        (use,) = told["hooks"]
        assert (use["name"], use["fate"]) == ("before_reply", "answered")
        assert told["answered_by"] == "python"


async def test_a_late_on_call_costs_the_greeting_and_makes_the_class_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(agent_hooks, "ON_CALL_S", 0.05)
    late = "async def on_call(self):\n        import asyncio\n        await asyncio.sleep(0.3)"
    monkeypatch.setattr(sys.modules[__name__], "GUARD", GUARD.replace("def on_call(self):", late))
    async with guarding(tmp_path) as server, server.connect("?agent=desk") as client:
        assert await say(client, "how many") == "1 turns."
        assert "on_call of desk:Desk: no answer in 0.05 s" in caplog.text


async def test_a_class_that_on_call_does_not_make_in_time_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_class, "MAKE_S", 0.2)
    first = tmp_path / "first"
    hangs = f"""async def on_call(self):
        import asyncio
        path = pathlib.Path({str(first)!r})
        if not path.exists():
            path.write_text("")
            await asyncio.sleep(60)"""
    load_agent(written(tmp_path, DESK.replace("def on_call(self):", hangs)))
    of, caller = AgentClass("desk:Desk", str(tmp_path), has_network=False), Caller(call="one")
    of.open(caller)
    with pytest.raises(ToolFailed, match="no instance in"):
        await of.run("on_call", {}, caller)
    told = await of.runs("opening_hours")("k", {"day": "monday"}, caller)
    assert json.loads(told)["asked"] == 1
    await of.close()


async def test_a_class_whose_process_has_just_died_is_started_anew(tmp_path: Path) -> None:
    load_agent(written(tmp_path, DESK))
    of = AgentClass("desk:Desk", str(tmp_path), has_network=False)
    await of.start()
    dead, orders = of._process, of._orders
    assert dead is not None
    os.kill(dead.pid, signal.SIGKILL)
    assert select.select([orders], [], [], 5.0)[0]  # nobody has told the loop
    assert dead.returncode is None
    await of.start()
    assert of._process is not dead
    await of.close()


async def test_a_call_that_ends_within_its_on_call_has_its_on_end_behind_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_class, "END_S", 0.5)
    late = "async def on_call(self):\n        import asyncio\n        await asyncio.sleep(0.6)"
    load_agent(written(tmp_path, DESK.replace("def on_call(self):", late)))
    of, caller = AgentClass("desk:Desk", str(tmp_path), has_network=False), Caller(call="one")
    await of.start()
    of.open(caller)
    began = asyncio.create_task(of.run("on_call", {}, caller))
    await asyncio.sleep(0)  # it has begun
    of.end(caller)
    await of.close()
    assert (await began).text == "Good day." and (tmp_path / "ended").read_text() == "0"


async def test_a_class_hears_a_turn_once_though_two_answers_are_asked_for(tmp_path: Path) -> None:
    async with guarding(tmp_path) as server, server.connect() as client:
        await ask(client, "how many", "text")
        await client.send('{"type": "response.cancel"}')
        assert (await until(client, "response.done"))["response"]["status"] == "cancelled"
        await client.send(
            '{"type": "response.create", "response": {"output_modalities": ["text"]}}'
        )
        assert (await until(client, "response.output_text.done"))["text"] == "1 turns."


async def test_a_class_has_sentences_said_otherwise(tmp_path: Path) -> None:
    async with guarding(tmp_path) as server, server.connect() as client:
        assert await say(client, "say One. Secret. And two.") == "1. And two."
        assert await ended(client, "say A raise of a sentence.") == "failed"
        await ask(client, "say A raise of a sentence.", "audio")
        said = await until(client, "response.output_audio_transcript.done")
        assert said["transcript"] == "Once more, please."


async def test_a_class_changes_a_call_of_a_tool_or_answers_it(tmp_path: Path) -> None:
    async with guarding(tmp_path) as server, server.connect() as client:
        assert await say(client, "price tea") == "It is 2 euros."
        assert await say(client, "price coffee") == "It is 2 euros."
        assert await say(client, "price wine") == "It is not today."
        assert await say(client, "price raise") == 'It is {"error": "failed"}.'


@pytest.mark.parametrize("words", ["before loop", "say A loop of a sentence.", "price loop"])
async def test_a_hook_that_blocks_costs_its_turn_and_no_other_call(
    tmp_path: Path, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with guarding(tmp_path) as server:
        async with server.connect() as client, server.connect() as other:
            await ended(client, words)
            assert await say(other, "price tea") == "It is 2 euros."
            assert "of desk:Desk: no answer in" in caplog.text
            await waited(lambda: "a new instance" in caplog.text)
            assert await say(client, "price tea") == "It is 2 euros."


async def test_a_method_that_hands_the_call_to_nobody_leaves_it_and_the_caller_is_told(
    tmp_path: Path,
) -> None:
    """As to a telephone, in a call that came by a page."""
    person = (Transfer("billing", "tel:+49301234567"),)
    async with guarding(tmp_path, transfers=person) as server:
        async with server.connect("?agent=desk") as client:
            assert await say(client, "bill please") == CallManners().not_transferred
            assert await say(client, "say hello") == "hello"


async def test_a_method_hands_the_call_to_another_agent(tmp_path: Path) -> None:
    async with guarding(tmp_path) as server, server.connect("?agent=desk") as client:
        assert await say(client, "bill please") == "Off you go."
        greeted = await until(client, "response.output_audio_transcript.done")
        assert greeted["transcript"] == "Billing here."
        await until(client, "response.done")
        assert await say(client, "say hello") == "hello"


async def test_a_driven_call_tells_a_turn_once_the_agent_that_took_over_has_spoken(
    tmp_path: Path,
) -> None:
    async with guarding(tmp_path) as server:
        url = f"ws://127.0.0.1:{server.port}/v1/realtime?agent=desk"
        call = HeldCall(await RealtimeConnection.open(url), {}, CallOptions(greeting_wait_s=0.0))
        running = asyncio.create_task(call.run())
        await call.greeted.wait()
        handed = await call.say(Say("bill please", None))
        told = await call.say(Say("say hello", None))
        call.stop()
        await running
    assert handed["answer"] == "Off you go. Billing here."
    assert (told["answer"], told["errors"]) == ("hello", [])
