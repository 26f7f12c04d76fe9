"""The stock browser SDK, its shipped bundle unchanged, on a page of another origin in Chromium.

It comes with the environment `agents_js` of ``tests/interop/make_envs.py``; where that or a
Chromium is missing the test is skipped, or fails where ``INTEROP_REQUIRED`` is set.
"""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import FileResponse, HTMLResponse
from starlette.routing import Route

from tests.clients.web.chromium import chromium, find_chromium
from tests.clients.web.test_browser_call import microphone, with_doors
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Reply
from tests.interop.test_clients import ENVIRONMENTS
from tests.serving import serving
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends, ToolCall
from voiceloop.config import Config
from voiceloop.server.app import Gateway
from voiceloop.server.process import listen

CHROMIUM = find_chromium()
PACKAGE = ENVIRONMENTS / "agents_js" / "node_modules" / "@openai" / "agents-realtime"
BUNDLE = PACKAGE / "dist" / "bundle" / "openai-realtime-agents.umd.js"
KEY = "a-key-that-lasts-0123456789abcdef"
LONG = (
    "Certainly, that is noted, and here is a little more about it so that you can interrupt. " * 4
)
ICON = '<link rel="icon" href="data:,">'
# The microphone speaks when the test says so: a recording that runs by the clock is past before a
# slow machine has connected.
MICROPHONE = """<script>
  const context = new AudioContext();
  const microphone = context.createMediaStreamDestination();
  navigator.mediaDevices.getUserMedia = async () => microphone.stream;
  globalThis.speak = async (name) => {
    const file = await (await fetch(`/${name}.wav`)).arrayBuffer();
    const source = context.createBufferSource();
    source.buffer = await context.decodeAudioData(file);
    source.connect(microphone);
    source.start();
    return context.state;
  };
</script>"""
PAGE = f'<!doctype html><title>SDK</title>{ICON}{MICROPHONE}<script src="/sdk.js"></script>'
# As a person would write it from OpenAI's guide, but for the address and what the test looks at.
CALL = """(async () => {{
  const {{ RealtimeAgent, RealtimeSession, tool }} = OpenAIAgentsRealtime;
  globalThis.seen = [];
  globalThis.ran = [];
  const hours = tool({{
    name: "hours", description: "Opening hours of a day.", strict: false,
    parameters: {{ type: "object", properties: {{ day: {{ type: "string" }} }}, required: ["day"],
      additionalProperties: true }},
    execute: async ({{ day }}) => {{ ran.push(day); return "nine to five"; }},
  }});
  const agent = new RealtimeAgent({{ name: "Ava", instructions: "Be brief.", tools: [hours] }});
  globalThis.session = new RealtimeSession(agent);
  session.on("transport_event", ({{ type }}) => seen.push(type));
  session.on("error", ({{ error }}) => seen.push("sdk.error " + JSON.stringify(error)));
  await session.connect({{ apiKey: "{secret}", url: "{server}/v1/realtime/calls" }});
  return session.transport.constructor.name + " " + session.transport.status;
}})()"""

pytestmark = [pytest.mark.call(seconds=17), pytest.mark.timeout(120)]


def agent_with_a_tool() -> Gateway:
    """Calls the tool for who types, then says so; answers who speaks at length."""
    call = Reply("", (ToolCall("call_1", "hours", '{"day": "monday"}'),))

    def answer(messages: object) -> str | Reply:
        last = messages[-1]  # type: ignore[index]
        if last.role == "tool":
            return f"We are open {last.content}."
        return call if "monday" in last.content else LONG

    backends = Backends(
        FakeRecognizer(("what do you have",)), FakeLanguageModel(answer), FakeVoice()
    )
    return Gateway(Config(keys=(KEY,), allowed_origins=("*",)), AgentConfig(name="Ava"), backends)


def require(what: str, is_there: bool) -> None:
    if not is_there and os.environ.get("INTEROP_REQUIRED"):
        pytest.fail(f"expected {what}, found none")
    if not is_there:
        pytest.skip(f"there is no {what}")


async def test_the_stock_browser_sdk_talks_calls_its_tool_and_is_interrupted(
    tmp_path: Path,
) -> None:
    require("Chromium", CHROMIUM is not None)
    require(f"{BUNDLE} (python tests/interop/make_envs.py makes it)", BUNDLE.is_file())
    assert CHROMIUM is not None
    silence = microphone(tmp_path / "silence.wav", [1.0])
    wavs = [
        microphone(tmp_path / f"{name}.wav", [name, 1.0]) for name in ("1_hours", "7_interrupt")
    ]
    routes = [
        *(Route(f"/{wav.name}", lambda request, wav=wav: FileResponse(wav)) for wav in wavs),
        Route("/", lambda request: HTMLResponse(PAGE)),
        Route("/sdk.js", lambda request: FileResponse(BUNDLE, media_type="text/javascript")),
    ]
    sock = listen("127.0.0.1", 0)
    async with (
        with_doors(agent_with_a_tool()) as port,
        serving(Starlette(routes=routes), Config(), sock),
        chromium(CHROMIUM, silence) as page,
    ):
        server = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=server) as http:
            headers = {"Authorization": f"Bearer {KEY}"}
            made = await http.post(
                "/v1/realtime/client_secrets", headers=headers, json={"browser": False}
            )
        await page.goto(f"http://127.0.0.1:{sock.getsockname()[1]}/")
        await page.until("globalThis.OpenAIAgentsRealtime !== undefined")
        call = CALL.format(secret=made.json()["value"], server=server)
        assert (await page.evaluate(call)).endswith(" connected")

        await page.evaluate("session.sendMessage('When are you open on monday?'); 0")
        await page.until("ran.length === 1 && seen.includes('output_audio_buffer.stopped')")
        assert await page.evaluate("ran[0]") == "monday"

        # The caller speaks, is answered, and cuts in.
        started = "seen.filter((one) => one === 'output_audio_buffer.started').length"
        before = await page.evaluate(started)
        assert await page.evaluate("speak('1_hours')") == "running"
        await page.until(f"{started} > {before}")
        await page.evaluate("speak('7_interrupt')")
        await page.until("seen.includes('output_audio_buffer.cleared')")
        await page.until("seen.includes('conversation.item.truncated')")
        told = "session.history.filter((one) => one.type === 'message').map((one) => one.role)"
        assert (await page.evaluate(told))[:4] == ["user", "assistant", "user", "assistant"]
        await page.evaluate("session.close(); 0")
        seen = await page.evaluate("seen")
        assert not [one for one in seen if one.startswith("sdk.error")], seen
        assert page.console == []
