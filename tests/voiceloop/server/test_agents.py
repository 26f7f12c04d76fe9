"""Several agents on one server: who answers which call, over real sockets."""

import json
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from tests.fakes import FakeLanguageModel, instant_backends
from tests.voiceloop.server.test_app import running, until
from tests.voiceloop.server.test_resume import KEYS, keyed, say
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.models.presets import resolve_agents
from voiceloop.server.process import first_of

pytestmark = pytest.mark.virtual_time

SHOP, CLINIC = AgentConfig(instructions="a shop"), AgentConfig(instructions="a clinic")
BOTH = {"clinic": CLINIC, "shop": SHOP}


def told_back() -> Backends:
    """Answers with its instructions."""
    return instant_backends(language_model=FakeLanguageModel(lambda said: said[0].content))


def folder(path: Path, **agents: str) -> Config:
    for name, text in agents.items():
        (path / f"{name}.toml").write_text(text)
    return Config(agents=path)


async def test_a_base_address_a_query_or_nothing_says_who_answers(tmp_path: Path) -> None:
    async with running(folder(tmp_path), told_back(), others=BOTH) as server:
        async with server.connect("?agent=shop") as client:
            assert await say(client, "hello") == "a shop"
        async with server.connect() as client:
            assert await say(client, "hello") == "Be kind."
        labels = {"agent": "shop", "outcome": "completed"}
        counted = server.gateway.metrics.registry.get_sample_value
        assert counted("voiceloop_agent_turns_total", labels) == 1.0
        # The address goes before what the query says.
        async with server.connect("?agent=shop", base="/agents/clinic") as client:
            assert await say(client, "hello") == "a clinic"


class Adapted(FakeLanguageModel):
    """Says by which adapter it answers."""

    def adapted(self, adapter: str) -> "Adapted":
        return Adapted(lambda said: f"by {Path(adapter).name}")


async def test_each_agent_is_answered_by_its_own_adapter(tmp_path: Path) -> None:
    adapted = {"shop": replace(SHOP, llm_adapter=tmp_path / "one"), "clinic": CLINIC}
    backends = instant_backends(language_model=Adapted(lambda said: "by none"))
    async with running(folder(tmp_path), backends, others=adapted) as server:
        for query, said in (("?agent=shop", "by one"), ("?agent=clinic", "by none")):
            async with server.connect(query) as client:
                assert await say(client, "hello") == said


async def test_a_request_is_answered_by_the_adapter_of_the_agent_that_it_names(
    tmp_path: Path,
) -> None:
    adapted = {"shop": replace(SHOP, llm_adapter=tmp_path / "one"), "clinic": CLINIC}
    backends = instant_backends(language_model=Adapted(lambda said: "by none"))
    config = Config(keys=(f"{KEYS[0]} clinic", "every-agent-key"), agents=tmp_path)
    asked = {"messages": [{"role": "user", "content": "hello"}]}
    async with (
        running(config, backends, others=adapted) as server,
        httpx.AsyncClient(base_url=server.http) as http,
    ):
        every, clinic = bearer("every-agent-key"), bearer(KEYS[0])

        async def said(path: str, model: str, key: dict[str, str] = every) -> httpx.Response:
            path += "/v1/chat/completions"
            return await http.post(path, json=asked | {"model": model}, headers=key)

        for path, model, expected in (
            ("", "shop", "by one"), ("/agents/shop", "any", "by one"), ("", "any", "by none"),
            ("", "clinic", "by none"), ("/agents/clinic", "shop", "by none"),
        ):  # fmt: skip
            body = (await said(path, model)).json()
            assert body["choices"][0]["message"]["content"] == expected, (path, model)
        assert (await said("", "shop", clinic)).status_code == 403
        assert (await said("/agents/shopp", "any")).status_code == 400
        for key, listed in ((every, ["voiceloop", "shop"]), (clinic, ["voiceloop"])):
            models = (await http.get("/v1/models", headers=key)).json()["data"]
            assert [one["id"] for one in models] == listed
            found = await http.get("/v1/models/shop", headers=key)
            assert found.status_code == (200 if "shop" in listed else 404)


async def test_an_agent_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    async with running(folder(tmp_path), others=BOTH) as server:
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect("?agent=shopp"):
                pass
        assert refused.value.response.status_code == 400
        assert b"found 'shopp'; the nearest is 'shop'" in refused.value.response.body
    async with running() as server:
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect("?agent=shop"):
                pass
        assert b"expected none: this server has one" in refused.value.response.body


async def test_a_key_opens_the_agents_that_stand_behind_it_and_no_others(tmp_path: Path) -> None:
    config = Config(keys=(f"{KEYS[0]} shop", "every-agent-key"), agents=tmp_path)
    async with running(config, told_back(), others=BOTH) as server:
        async with server.connect(**keyed()) as client:
            assert await say(client, "hello") == "a shop"
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect("?agent=clinic", **keyed()):
                pass
        assert refused.value.response.status_code == 403
        async with httpx.AsyncClient(base_url=server.http) as http:
            key = {"Authorization": f"Bearer {KEYS[0]}"}
            path = "/v1/realtime/client_secrets"
            assert (await http.post(path, headers=key, json={"agent": "clinic"})).status_code == 403
            listed = (await http.get("/v1/agents", headers=key)).json()["data"]
            assert listed == [{"name": "shop"}]
            every = {"Authorization": "Bearer every-agent-key"}
            listed = (await http.get("/v1/agents", headers=every)).json()["data"]
            assert [one["name"] for one in listed] == ["clinic", "shop"]
            made = (await http.post(path, headers=every, json={"agent": "clinic"})).json()
            assert made["session"]["instructions"] == "a clinic"
        async with server.connect(additional_headers=bearer(made["value"])) as client:
            assert await say(client, "hello") == "a clinic"
        with pytest.raises(InvalidStatus) as refused:
            async with server.connect("?agent=shop", additional_headers=bearer(made["value"])):
                pass
        assert refused.value.response.status_code == 403


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_a_call_is_not_resumed_with_another_agent(tmp_path: Path) -> None:
    async with running(folder(tmp_path), told_back(), others=BOTH) as server:
        async with server.connect("?voiceloop.resume=1&agent=shop") as client:
            ticket = (await until(client, "voiceloop.resume_ticket"))["ticket"]
        async with server.connect("?voiceloop.resume=1&agent=clinic") as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": ticket}))
            assert (await until(client, "error"))["error"]["code"] == "resume_refused"
            assert await say(client, "hello") == "a clinic"
        async with server.connect("?voiceloop.resume=1&agent=shop") as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": ticket}))
            await until(client, "voiceloop.resumed")


def test_files_of_a_folder_are_agents_by_their_names(tmp_path: Path) -> None:
    config = folder(tmp_path, shop='instructions = "a shop"', clinic='instructions = "a clinic"')
    agents = resolve_agents(config)
    assert {name: agent.instructions for name, agent in agents.items()} == {
        "clinic": "a clinic",
        "shop": "a shop",
    }
    assert first_of(config, agents) is agents["clinic"]
    named = load_config(None, environ={}, flags={"agents": tmp_path, "agent": Path("shop")})
    assert first_of(named, agents) is agents["shop"]


@pytest.mark.parametrize(
    ("name", "told"),
    [("", "found 0 in"), ("a shop", "found 'a shop.toml'"), ("shop", "agent.toml|shop.toml")],
)
def test_a_folder_that_holds_no_agents_is_told(tmp_path: Path, name: str, told: str) -> None:
    config = folder(tmp_path, **{name: "unheard_of = 1"} if name else {})
    with pytest.raises(ConfigError, match=told):
        resolve_agents(config)
