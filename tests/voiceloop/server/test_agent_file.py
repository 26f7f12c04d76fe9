"""The agent's file, saved while calls are on: over real sockets."""

import asyncio
import json
import logging
from functools import partial
from pathlib import Path

import pytest

from tests.fakes import FakeLanguageModel, instant_backends
from tests.voiceloop.server.test_app import Running, running, until
from tests.voiceloop.server.test_resume import say
from voiceloop.agent_file import load_agent
from voiceloop.backends import Backends
from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.server.agent_file import AgentFile
from voiceloop.server.process import _take

pytestmark = pytest.mark.virtual_time


def told_back() -> Backends:
    """Answers with its instructions."""
    return instant_backends(language_model=FakeLanguageModel(lambda said: said[0].content))


def file_of(server: Running, path: Path) -> AgentFile:
    gateway = server.gateway
    return AgentFile(path, gateway.agent, partial(load_agent, path), partial(_take, gateway))


def written(path: Path, instructions: str, more: str = "") -> Path:
    path.write_text(f'instructions = "{instructions}"\n{more}')
    return path


async def test_a_saved_line_is_in_the_next_turn_of_an_open_call_and_in_new_ones(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "shop.toml", "before")
    async with running(Config(agent=path), told_back()) as server:
        server.gateway.take_agent(load_agent(path))
        file = file_of(server, path)
        async with server.connect() as client, server.connect() as own:
            assert await say(client, "hello") == "before"
            mine = {"type": "realtime", "instructions": "the client's"}
            await own.send(json.dumps({"type": "session.update", "session": mine}))
            await until(own, "session.updated")
            more = "speed = 1.2\ngreeting = 'Good day.'\n"
            more += "[[answer]]\nquestions = ['which door']\ntext = 'The red one.'"
            written(path, "after", more)
            await file.reload()
            updated = (await until(client, "session.updated"))["session"]
            assert updated["instructions"] == "after" and updated["audio"]["output"]["speed"] == 1.2
            assert await say(client, "hello") == "after"
            assert await say(client, "which door") == "The red one."
            written(path, "after", more.replace("red", "green"))  # and nothing of the session
            await file.reload()
            assert await say(client, "which door") == "The green one."
            assert await say(own, "hello") == "the client's"
        async with server.connect() as client:
            assert await say(client, "hello") == "after"
        assert server.gateway.agent.greeting == "Good day."


@pytest.mark.parametrize(
    "content", ["instructions = 3", "instructions = '", "unheard_of = 1", None]
)
async def test_a_file_that_is_wrong_changes_nothing_and_is_told(
    tmp_path: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "shop.toml", "before")
    async with running(Config(agent=path), told_back()) as server:
        server.gateway.take_agent(load_agent(path))
        file = file_of(server, path)
        path.unlink()
        if content is not None:
            path.write_text(content)
        with caplog.at_level(logging.ERROR):
            await file.reload()
        assert "stays as it was" in caplog.text
        async with server.connect() as client:
            assert await say(client, "hello") == "before"


async def test_what_waits_for_the_next_start_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "shop.toml", "before")
    async with running(Config(agent=path), told_back()) as server:
        server.gateway.take_agent(load_agent(path))
        written(path, "after", "[[tools]]\nname = 'order'\ndescription = 'Orders.'")
        with caplog.at_level(logging.INFO):
            await file_of(server, path).reload()
        assert "tools: at the next start" in caplog.text
        assert not server.gateway.agent.tools and server.gateway.agent.instructions == "after"


async def test_what_was_saved_while_the_server_started_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "shop.toml", "before")
    async with running(Config(agent=path), told_back()) as server:
        server.gateway.take_agent(load_agent(path))
        written(path, "meanwhile")
        watching = asyncio.create_task(file_of(server, path).watch())
        async with server.connect() as client:
            await asyncio.sleep(0.1)
            assert await say(client, "hello") == "meanwhile"
        watching.cancel()


async def test_the_file_is_looked_at_by_itself(tmp_path: Path) -> None:
    path = written(tmp_path / "shop.toml", "before")
    async with running(Config(agent=path), told_back()) as server:
        server.gateway.take_agent(load_agent(path))
        watching = asyncio.create_task(file_of(server, path).watch())
        async with server.connect() as client:
            written(path, "after a while")
            await until(client, "session.updated")
            assert await say(client, "hello") == "after a while"
        watching.cancel()


def test_there_must_be_a_file_to_read_again() -> None:
    with pytest.raises(
        ConfigError, match="reload: expected an agent's file in agent, found pizzeria"
    ):
        load_config(None, environ={}, flags={"reload": True, "agent": Path("pizzeria")})
