"""``GET /v1/agent``: who answers, told before a call."""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec

from audio import opus
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice
from tests.voiceloop.http_client import http_client
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config

AGENT = AgentConfig(
    name="Marco",
    instructions="You know the secret sauce.",
    try_saying=("How much is a pizza?",),
    tools=(
        AgentTool("price", result={"*": "1"}),
        AgentTool("hours", result="{}"),
        AgentTool("book"),
    ),
)
KNOWN = Capabilities(
    voices=frozenset({"b", "a"}), voice_model="hibari", recognizer="moonshine-tiny"
)


def backends() -> Backends:
    return Backends(FakeRecognizer(()), FakeLanguageModel(()), FakeVoice(), lambda: KNOWN)


async def test_a_page_learns_who_answers_and_which_tools_are_its_own() -> None:
    config = Config(preset="embedded", llm_url=("http://x/v1",), llm_model="qwen")
    async with http_client(config=config, agent=AGENT, backends=backends()) as http:
        found = (await http.get("/v1/agent")).json()
    assert found == {
        "object": "voiceloop.agent",
        "name": "Marco",
        "try_saying": ["How much is a pizza?"],
        "preset": "embedded",
        "models": {"recognizer": "moonshine-tiny", "language_model": "qwen", "voice": "hibari"},
        "voices": ["a", "b"],
        "client_tools": ["book"],
        "webrtc": find_spec("aiortc") is not None and opus.is_available(),
    }


async def test_a_key_keeps_the_agent_to_those_who_may_call_it() -> None:
    config = dataclasses.replace(Config(), keys=("secret-key-1",))
    async with http_client(config=config, agent=AGENT, backends=backends()) as http:
        assert (await http.get("/v1/agent")).status_code == 401
        keyed = {"Authorization": "Bearer secret-key-1"}
        secret = (await http.post("/v1/realtime/client_secrets", headers=keyed)).json()["value"]
        with_secret = {"Authorization": f"Bearer {secret}"}
        assert (await http.get("/v1/agent", headers=with_secret)).status_code == 200
