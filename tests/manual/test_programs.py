"""Every program of a page runs: here as pasted, or where a test of its own follows it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest
from pygments.lexers import get_lexer_by_name
from pygments.token import Token

from tests.interop.make_envs import interpreter
from tests.interop.test_clients import ENVIRONMENTS, require
from tests.manual.pasted import DOCS, FENCE, PAGES, ROOT, Terminal
from tests.manual.test_pasted import terminal
from voiceloop.agent_file import load_agent
from voiceloop.doors.webrtc.peer import CHANNEL
from voiceloop.http.openapi import description

__all__ = ["terminal"]  # the fixture
PROGRAMS = ("python", "js", "jsx", "swift", "kotlin")
# By page, what a program holds: who runs it, or, of what wants a Mac or Android, who reads it.
RUN_BY = {
    ("README", "AsyncOpenAI"): "tests.manual.test_programs",
    ("TOOLS", "free_tables"): "tests.manual.test_programs",
    ("EMBED", "async def token"): "tests.voiceloop.http.test_sites",
    ("COMING_FROM", "pipecat"): "tests.manual.test_programs",
    ("COMING_FROM", "livekit"): "tests.manual.test_programs",
    ("PHONE", "livekit"): "tests.manual.test_programs",
    ("PHONE", "webhooks.unwrap"): "tests.interop.test_webhook",
    ("MODELS", "class Parrot"): "tests.voiceloop.models.test_providers",
    ("PROTOCOL", "on_reconnecting"): "tests.interop.test_clients",
    ("YOUR_AGENT", "compare_digest"): "tests.voiceloop.tools.test_caller",
    ("YOUR_AGENT", "timingSafeEqual"): "tests.voiceloop.tools.test_caller",
    ("YOUR_AGENT", "def place_order"): "tests.voiceloop.test_your_agent_page",
    ("YOUR_AGENT", "class Desk"): "tests.voiceloop.server.test_python_agents",
    ("EMBED", "app.post"): "tests.voiceloop.http.test_sites",
    ("REACT", ""): "tests.clients.web.test_embed",
    ("REACT_NATIVE", ""): "tests.manual.test_programs",
    ("SWIFT", ""): "tests.manual.test_programs",
    ("KOTLIN", ""): "tests.manual.test_programs",
}


# In place of the package of an app: it notes what it is asked, and so does `fetch`.
STAND_IN = """
export const asked = [];
const note = (name, value) => { asked.push([name, value]); return value; };
const channel = {
  addEventListener: (name, heard) => {
    if (name === "open") setTimeout(heard);
    else setTimeout(() => heard({ data: '{"type": "session.created"}' }));
  },
  send: (text) => note("send", JSON.parse(text)),
};
export class RTCPeerConnection {
  addTrack(track) { note("track", track.kind); }
  createDataChannel(name) { note("channel", name); return channel; }
  async createOffer() { return { type: "offer", sdp: "the offer" }; }
  async setLocalDescription(offer) { note("local", offer.type); }
  async setRemoteDescription(answer) { note("remote", answer); }
  close() { note("close", true); }
}
const track = { kind: "audio", enabled: true, stop: () => note("stop", true) };
export const mediaDevices = { getUserMedia: async () => ({ getTracks: () => [track] }) };
globalThis.fetch = async (url, request) => {
  note("fetch", { url, ...request });
  return { ok: true, text: async () => "the answer" };
};
"""
CALLS = """
import { call } from "./program.mjs";
import { asked } from "react-native-webrtc";
const heard = [];
const one = await call({ server: "https://voice", secret: "ek_1", onEvent: (e) => heard.push(e) });
one.send({ type: "response.create" });
one.mute(true);
one.end();
console.log(JSON.stringify([asked, heard]));
"""


def programs() -> list[tuple[str, str]]:
    return [
        (page.stem, text)
        for page in PAGES
        for _, language, text in FENCE.findall(page.read_text(encoding="utf-8"))
        if language in PROGRAMS
    ]


def program(page: str, mark: str) -> str:
    [found] = [text for name, text in programs() if name == page and mark in text]
    return found


def test_every_program_is_run_by_somebody() -> None:
    for page, text in programs():
        assert any(page == name and mark in text for name, mark in RUN_BY), (page, text[:200])
    for (page, mark), test in RUN_BY.items():
        assert any(page == name and mark in text for name, text in programs()), (page, mark)
        assert (ROOT / f"{test.replace('.', '/')}.py").exists(), test


def test_the_function_of_a_tool_answers(tmp_path: Path) -> None:
    page = (DOCS / "TOOLS.md").read_text(encoding="utf-8")
    [settings] = re.findall(r"```toml\n([^`]*python = [^`]*)```", page)
    (tmp_path / "agent.toml").write_text(settings, encoding="utf-8")
    [tool] = load_agent(tmp_path / "agent.toml").tools
    names: dict[str, object] = {}
    exec(program("TOOLS", "free_tables"), names)
    function = names[tool.python.partition(":")[2]]
    assert callable(function) and function(day="friday") == {"tables": 3}


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here")
def test_the_program_of_an_app_makes_a_call(tmp_path: Path) -> None:
    package = tmp_path / "node_modules" / "react-native-webrtc"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
    (package / "index.js").write_text(STAND_IN)
    (tmp_path / "program.mjs").write_text(program("REACT_NATIVE", ""))
    (tmp_path / "calls.mjs").write_text(CALLS)
    ran = subprocess.run(
        ["node", "calls.mjs"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    asked, heard = json.loads(ran.stdout)
    headers = {"Authorization": "Bearer ek_1", "Content-Type": "application/sdp"}
    request = {"method": "POST", "headers": headers, "body": "the offer"}
    assert asked == [
        ["track", "audio"], ["channel", CHANNEL], ["local", "offer"],
        ["fetch", {"url": "https://voice/v1/realtime/calls", **request}],
        ["remote", {"type": "answer", "sdp": "the answer"}],
        ["send", {"type": "response.create"}], ["stop", True], ["close", True],
    ]  # fmt: skip
    assert heard == [{"type": "session.created"}]


@pytest.mark.parametrize("page", ["SWIFT", "KOTLIN"])
def test_a_program_that_nobody_can_build_here_is_whole_and_asks_for_what_there_is(
    page: str,
) -> None:
    text = program(page, "")
    tokens = list(get_lexer_by_name(page.lower()).get_tokens(text))
    assert not [value for kind, value in tokens if kind in Token.Error]
    code = "".join(v for k, v in tokens if k not in Token.Literal.String and k not in Token.Comment)
    open_marks = ""
    for mark in re.findall(r"[][(){}]", code):
        if mark in "([{":
            open_marks += mark
        else:
            assert open_marks[-1:] + mark in ("()", "[]", "{}"), code
            open_marks = open_marks[:-1]
    assert not open_marks
    paths = description()["paths"]
    named = re.findall(r"\bv1/[\w/]+", text)
    assert named and all("201" in paths[f"/{name}"]["post"]["responses"] for name in named)
    assert "createDataChannel" not in text or f'"{CHANNEL}"' in text


@pytest.mark.call
@pytest.mark.timeout(180)
async def test_the_program_of_the_readme_prints_the_answer(terminal: Terminal) -> None:
    require("openai")
    await terminal.run("voiceloop serve")
    text = program("README", "AsyncOpenAI").replace("127.0.0.1:8080", f"127.0.0.1:{terminal.port}")
    (terminal.folder / "program.py").write_text(text, encoding="utf-8")
    command = f"{interpreter(ENVIRONMENTS, 'openai')} program.py"
    assert await terminal.run(command) == 0, terminal.printed
    assert terminal.printed == "We open at seven."


@pytest.mark.call
@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("page", "mark", "environment"),
    [
        ("COMING_FROM", "pipecat", "pipecat"),
        ("COMING_FROM", "livekit", "livekit"),
        ("PHONE", "livekit", "livekit"),
    ],
)
def test_the_lines_of_another_framework_are_taken_by_it(
    page: str, mark: str, environment: str
) -> None:
    require(environment)
    body = textwrap.indent(program(page, mark), "    ")
    text = f"import asyncio\n\n\nasync def main():\n{body}\n\n\nasyncio.run(main())\n"
    told = subprocess.run(
        [interpreter(ENVIRONMENTS, environment), "-c", text],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr[-2000:]
