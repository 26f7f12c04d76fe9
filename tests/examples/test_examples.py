"""The examples as they stand: their agents served, their clients and their back end run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.fakes import FakeLanguageModel, Reply, instant_backends
from tests.interop.make_envs import interpreter
from tests.interop.test_clients import ENVIRONMENTS
from tests.voiceloop.server.test_app import Running, running, until
from tests.voiceloop.server.test_resume import say
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.agent_file import load_agent
from voiceloop.backends import ChatMessage, ToolCall
from voiceloop.config import Config
from voiceloop.knowledge import retrieval
from voiceloop.knowledge.sources import open_retriever
from voiceloop.models.presets import resolve_agents
from voiceloop.reply import agent_hooks
from voiceloop.tools.toolbox import toolbox_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KEY, CALLER_KEY = "the-server-key-1", "a-key-of-callers-1"


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(agent_hooks, "ON_TURN_MS", 2000.0)
    monkeypatch.setattr(agent_hooks, "IN_TURN_S", 2.0)
    monkeypatch.setattr(agent_hooks, "ON_CALL_S", 10.0)
    monkeypatch.setattr(retrieval, "LOOK_UP_MS", 5000.0)


def model(said: Sequence[ChatMessage]) -> Reply:
    """Calls the tool that the caller names, with the JSON behind it; else tells what it knows."""
    last = said[-1]
    name, _, arguments = last.content.partition(" ")
    if last.role == "tool":
        return Reply(last.content)
    if arguments.startswith("{"):
        return Reply("", (ToolCall("c1", name, arguments),))
    return Reply(last.behind.strip() or last.content)


@asynccontextmanager
async def serving(
    config: Config, others: dict[str, AgentConfig] | None = None
) -> AsyncIterator[Running]:
    agent = load_agent(config.agent) if config.agent is not None else next(iter(others.values()))
    backends = instant_backends(language_model=FakeLanguageModel(model))
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(
            running(config, backends, agent=agent, others=others or {})
        )
        for served in server.gateway.agents:
            await served.services.toolbox.start()
            stack.push_async_callback(served.services.toolbox.close)
            opening = open_retriever(served.agent.knowledge, "en", {})
            served.services.retriever = await stack.enter_async_context(opening)
        yield server


async def test_the_restaurant_keeps_an_order_and_says_the_sum_itself() -> None:
    config = Config(agent=EXAMPLES / "agents" / "restaurant.py")
    async with serving(config) as server, server.connect() as client:
        assert await say(client, 'price {"dish": "soup"}') == "$6.50"
        assert '"total":"$24.00"' in await say(client, 'add {"dish": "pasta", "number": 2}')
        assert "must be one of" in await say(client, 'add {"dish": "car"}')
        assert await say(client, "that's all thanks") == (
            "That is 2 pasta, $24.00 in all. It is ready in half an hour."
        )


async def test_the_clinics_desk_hands_to_billing_and_back() -> None:
    config = Config(agents=EXAMPLES / "agents" / "clinic")
    agents = resolve_agents(replace(config, preset="embedded"))
    async with serving(config, agents) as server, server.connect("?agent=desk") as client:
        assert await say(client, "i have chest pain") == "Please hang up and call 112 now."
        book = 'book {"day": "tuesday", "time": "11 am", "name": "Teresa"}'
        assert await say(client, book) == "booked for Teresa"
        assert await say(client, book) == "11 am is not free"
        await say(client, "open_balance {}")
        said = ""
        while not said.startswith("Billing, this is Otto."):
            done = await until(client, "response.output_audio_transcript.done")
            said = done["transcript"]
        await until(client, "response.done")
        assert "$120" in await say(client, 'bill {"number": "4711"}')
        assert await say(client, "bill 4711 it is") == "bill 4 7 1 1 it is"


async def test_support_answers_from_its_handbook_and_opens_two_tickets_at_most() -> None:
    config = Config(agent=EXAMPLES / "agents" / "support.py")
    async with serving(config) as server, server.connect() as client:
        assert "two years" in await say(client, "how long is the warranty")
        assert await say(client, 'status_of {"part": "shop"}') == "all runs"
        opened = [await say(client, 'open_ticket {"about": "a scratch"}') for _ in range(3)]
        assert opened == ["opened: a person writes within a day"] * 2 + [
            "there are two open already"
        ]


NODE = interpreter(ENVIRONMENTS, "openai_js")
no_node = pytest.mark.skipif(not NODE.is_file(), reason="Node 22 (tests/interop/make_envs.py)")


@pytest.mark.parametrize(
    ("runner", "client"),
    [(sys.executable, "client.py"), pytest.param(str(NODE), "client.ts", marks=no_node)],
)
async def test_a_client_orders_by_a_secret_that_the_back_end_mints(
    runner: str, client: str
) -> None:
    backend = EXAMPLES / "backend" / "backend.py"
    async with AsyncExitStack() as stack:
        backends = instant_backends(language_model=FakeLanguageModel(model))
        config = Config(keys=(KEY,))
        server = await stack.enter_async_context(running(config, backends))
        mint = await asyncio.create_subprocess_exec(
            sys.executable, str(backend), "--voiceloop", server.http, "--port", "0",
            env={**os.environ, "VOICELOOP_KEY": KEY, "SHOP_CALLER_KEY": CALLER_KEY},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        stack.callback(mint.terminate)
        assert mint.stdout is not None
        shop = (await mint.stdout.readline()).decode().strip()
        url, caller_key = f"{shop}/orders", "${SHOP_CALLER_KEY}"
        agent = AgentConfig(tools=(AgentTool("order_status", url=url, caller_key=caller_key),))
        variables = {"SHOP_CALLER_KEY": CALLER_KEY}
        server.gateway.calls.toolbox = toolbox_of(
            agent, server.gateway.clock, environment=variables
        )
        server.gateway.take_agent(agent)
        stack.push_async_callback(server.gateway.calls.toolbox.close)
        async with httpx.AsyncClient() as http:
            secret = (await http.post(f"{shop}/token")).json()["value"]
            forged = await http.post(f"{shop}/orders", headers={"VoiceLoop-Caller": "e30.00"})
            assert forged.status_code == 403
        run = await asyncio.create_subprocess_exec(
            runner, str(EXAMPLES / "clients" / client), f"ws://127.0.0.1:{server.port}/v1/realtime",
            "order_status {}", "hello", env={**os.environ, "VOICELOOP_KEY": secret},
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(30):
            told, _ = await run.communicate()
    first, second = told.decode().splitlines()
    assert json.loads(first) == {"status": "on its way, it comes on Friday"}
    assert second == "hello" and run.returncode == 0
