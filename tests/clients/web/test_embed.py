"""The widget on somebody's page: one script tag, another origin, a key that lasts a minute."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from benchmarks.calls.fake_server import fake_backends
from tests.clients.web.chromium import Page, chromium, find_chromium
from tests.clients.web.test_browser_call import microphone, with_doors
from tests.interop.test_clients import ENVIRONMENTS
from tests.serving import serving
from voiceloop.agent import AgentConfig
from voiceloop.config import Config
from voiceloop.server.app import Gateway
from voiceloop.server.process import listen

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.call(seconds=50),
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

KEY = "a-key-that-lasts-0123456789abcdef"
OUT = Path(__file__).resolve().parents[3] / "out" / "web"
WIDGET = "document.querySelector('voice-loop')"
STATE = f"{WIDGET}.state"
MOST_BYTES = 25_000
# The WAV has no echo. Chromium's canceller would take a caller over the agent for one at first.
NO_ECHO = """(() => {
  const devices = navigator.mediaDevices, open = devices.getUserMedia.bind(devices);
  devices.getUserMedia = ({ audio }) => open({ audio: { ...audio, echoCancellation: false } });
})()"""
AXE = ENVIRONMENTS / "axe" / "node_modules" / "axe-core" / "axe.min.js"
FINDINGS = """axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa", "best-practice"]})
  .then(({violations}) => violations.map(({id, nodes}) => [id, nodes[0].failureSummary]))"""
# What a page's owner may ask of everything on it.
POLICY = (
    "default-src 'none'; script-src {0}; connect-src 'self' {0} {1}; media-src blob: mediastream:"
)


@asynccontextmanager
async def a_page_of(
    voice_port: int, tag: str, sock: Any, policy: str | None = None
) -> AsyncIterator[None]:
    """A site of its own origin with the tag on its page, and the endpoint that mints a secret."""
    voice = f"http://127.0.0.1:{voice_port}"

    async def page(request: object) -> HTMLResponse:
        head = '<meta charset="utf-8"><title>Shop</title>'
        main = "<main><h1>Shop</h1></main>"
        text = f'<!doctype html><html lang="en"><head>{head}</head><body>{main}{tag}'
        headers = {"Content-Security-Policy": policy} if policy else {}
        return HTMLResponse(text.replace("HOST", voice), headers=headers)

    async def token(request: object) -> JSONResponse:
        async with httpx.AsyncClient() as http:
            answer = await http.post(
                f"{voice}/v1/realtime/client_secrets",
                headers={"Authorization": f"Bearer {KEY}"},
                json={"browser": True, "max_session_seconds": 600},
            )
        return JSONResponse(answer.json(), answer.status_code)

    app = Starlette(routes=[Route("/", page), Route("/token", token, methods=["POST"])])
    async with serving(app, Config(), sock):
        yield


@asynccontextmanager
async def shop(
    tmp_path: Path,
    tag: str,
    parts: Sequence[str | float] = (30.0,),
    *,
    config: Config | None = None,
    policy: str | None = None,
) -> AsyncIterator[Page]:
    """A browser on the shop's page. `site_…` in the tag stands for a site id of that page."""
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", list(parts))
    sock = listen("127.0.0.1", 0)
    origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
    config = config or Config()
    config = replace(config, keys=(KEY,), allowed_origins=(origin,))
    async with AsyncExitStack() as stack:
        gateway = Gateway(config, AgentConfig(name="Ava"), fake_backends())
        port = await stack.enter_async_context(with_doors(gateway))
        if "site_…" in tag:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
                made = await http.post(
                    "/v1/realtime/sites",
                    headers={"Authorization": f"Bearer {KEY}"},
                    json={"origins": [origin]},
                )
            tag = tag.replace("site_…", made.json()["site"])
        if policy is not None:
            policy = policy.format(f"http://127.0.0.1:{port}", f"ws://127.0.0.1:{port}")
        await stack.enter_async_context(a_page_of(port, tag, sock, policy))
        page = await stack.enter_async_context(chromium(CHROMIUM, wav))
        await page.size(1000, 700)
        await page.goto(f"{origin}/")
        await page.until(f"{WIDGET} !== null && {WIDGET}.shadowRoot !== null")
        await page.evaluate(NO_ECHO)
        yield page


def in_widget(selector: str) -> str:
    return f"{WIDGET}.shadowRoot.querySelector({json.dumps(selector)})"


async def press(page: Page, key: str) -> None:
    """A key that types nothing, and the carriage return of Enter."""
    code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
    text = "\r" if key == "Enter" else ""
    for kind in ("keyDown", "keyUp"):
        await page.call(
            "Input.dispatchKeyEvent",
            type=kind, key=key, code=key, text=text, windowsVirtualKeyCode=code,
        )  # fmt: skip


async def focused(page: Page) -> str:
    found: str = await page.evaluate(f"{WIDGET}.shadowRoot.activeElement?.textContent ?? ''")
    return found


@pytest.mark.parametrize(
    ("attributes", "carrier"),
    [
        ("data-token='/token'", "webrtc"),
        ("data-site='site_…' data-transport='websocket'", "websocket"),
    ],
)
async def test_one_tag_makes_a_call_that_is_heard_captioned_and_interrupted(
    tmp_path: Path, attributes: str, carrier: str
) -> None:
    tag = f'<script src="HOST/embed.js" {attributes} async></script>'
    parts = [2.5, "1_hours", 2.5, "7_interrupt", 12.0]
    async with shop(tmp_path, tag, parts, policy=POLICY) as page:
        states = f"window.states = []; {WIDGET}.addEventListener('voiceloop-state', "
        await page.evaluate(states + "({detail}) => states.push(detail)); 0")
        await page.evaluate(f"{in_widget('.primary')}.click()")
        await page.until(f"{STATE} === 'speaking'")
        await page.until(f"{in_widget('p.you')}?.textContent === 'You well this is what i said'")
        await page.until(
            f"[...{WIDGET}.shadowRoot.querySelectorAll('p.agent')]"
            ".some((one) => one.textContent.endsWith(' …'))"
        )
        await pictures(page, "embed")
        await page.evaluate(
            f"{in_widget('[role=status]')}.closest('section').dispatchEvent("
            "new KeyboardEvent('keydown', {key: 'Escape'})); 0"
        )
        await page.until(f"{STATE} === 'ended'")
        seen: list[str] = await page.evaluate("states")
        order = ["connecting", "listening", "thinking", "speaking", "listening"]
        assert is_within(order, seen) and seen[-1] == "ended", seen
        assert await page.evaluate(f"{WIDGET}.carrier") == carrier
        assert page.console == []


def is_within(order: Sequence[str], seen: Sequence[str]) -> bool:
    left = iter(seen)
    return all(state in left for state in order)


async def pictures(page: Page, name: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for width in (1000, 320):
        await page.size(width, 640)
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        for scheme in ("light", "dark"):
            await page.color_scheme(scheme)
            await page.screenshot(OUT / f"{name}_{width}_{scheme}.png")


async def test_a_person_with_keys_and_ears_alone_comes_through(tmp_path: Path) -> None:
    tag = '<voice-loop data-token="/token" data-label="Call the shop"></voice-loop>'
    tag += '<script src="HOST/embed.js" async></script>'
    async with shop(tmp_path, tag, ["1_hours", 30.0]) as page:
        assert await page.evaluate("document.querySelectorAll('voice-loop').length") == 1
        await press(page, "Tab")
        assert await focused(page) == "Call the shop"
        await press(page, "Enter")
        await page.until(f"{STATE} === 'connecting' || {WIDGET}.isInCall")
        assert await focused(page) == "Hang up"
        await page.until(f"{WIDGET}.isInCall && {STATE} !== 'connecting'")
        tree = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        named = {
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in tree
            if not node["ignored"]
        }
        assert {("button", "Mute"), ("button", "Hang up"), ("button", "Captions")} <= named
        assert {"status", "log"} <= {role for role, _ in named}
        assert ("log", "Captions") in named
        await press(page, "Escape")
        await page.until(f"{STATE} === 'ended'")
        assert await focused(page) == "Call the shop"


async def test_axe_finds_nothing_in_the_widget_in_any_state_or_scheme(tmp_path: Path) -> None:
    if not AXE.is_file() and os.environ.get("INTEROP_REQUIRED"):
        pytest.fail(f"expected {AXE}, found none")
    if not AXE.is_file():
        pytest.skip(f"no {AXE}; python tests/interop/make_envs.py makes it")
    tag = (
        '<script src="HOST/embed.js" data-token="/token" data-transport="websocket" async></script>'
    )
    async with shop(tmp_path, tag, [1.5, "1_hours", 30.0]) as page:
        await page.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        for state in ("idle", "in a call", "ended"):
            if state == "in a call":
                await page.evaluate(f"{in_widget('.primary')}.click()")
                await page.until(f"{in_widget('p.agent')}?.hidden === false")
            if state == "ended":
                await page.evaluate(f"{WIDGET}.end('ended'); 0")
            for scheme in ("light", "dark"):
                await page.color_scheme(scheme)
                found = await page.evaluate(FINDINGS)
                assert found == [], (state, scheme, found)


async def test_a_page_without_a_key_is_told_so_and_may_try_again(tmp_path: Path) -> None:
    tag = '<script src="HOST/embed.js" data-site="site_nothing" async></script>'
    async with shop(tmp_path, tag) as page:
        for _ in range(2):
            await page.evaluate(f"{in_widget('.primary')}.click()")
            await page.until(f"{STATE} === 'failed'")
            told = await page.evaluate(f"{in_widget('[role=status]')}.textContent")
            assert told == "No call: Invalid site id. Copy the whole of it."
            await page.evaluate(f"{WIDGET}.show('idle'); 0")


async def test_the_example_page_calls_its_own_server_and_all_of_it_is_small(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    gateway = Gateway(Config(), AgentConfig(name="Ava"), fake_backends())
    async with with_doors(gateway) as port, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{port}/embed")
        await page.until(f"{WIDGET} !== null")
        await page.evaluate(f"{WIDGET}.dataset.transport = 'websocket'")
        await page.evaluate(f"{in_widget('.primary')}.click()")
        await page.until(f"{STATE} === 'listening'")
        loaded = await page.evaluate(
            "performance.getEntriesByType('resource').map((one) => [one.name, one.transferSize])"
        )
        assert page.console == []
    widget = {name: size for name, size in loaded if re.search(r"/(embed|web/\w+)\.js", name)}
    assert len(widget) >= 3 and 0 < sum(widget.values()) < MOST_BYTES, widget
