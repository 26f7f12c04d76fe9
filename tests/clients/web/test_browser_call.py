"""The page in a real browser against a real server on scripted models, with a WAV as microphone.

Screenshots are written to out/web (light, dark, narrow), for a person to look at.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.calls.fake_server import fake_backends
from clients.recording import read_flac, write_wav
from clients.server_process import running_server
from tests.clients.web.chromium import Page, chromium, find_chromium
from voiceloop.agent import AgentConfig
from voiceloop.config import Config
from voiceloop.server.app import Gateway, build_app
from voiceloop.server.process import listen, make_server

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.call,
    pytest.mark.timeout(120),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]

ROOT = Path(__file__).resolve().parents[3]
VOICE = ROOT / "clients" / "call" / "heart"
OUT = ROOT / "out" / "web"
RATE_HZ = 24_000
FAKES = (sys.executable, "-m", "benchmarks.calls.fake_server")
SILENT_WITHIN_MS = 150.0  # from the news of a barge-in to silence at the loudspeaker


def microphone(path: Path, parts: Sequence[str | float]) -> Path:
    """A WAV of recordings (names) and silences (seconds)."""
    pieces = [
        read_flac(VOICE / f"{part}.flac").at_rate(RATE_HZ).samples
        if isinstance(part, str)
        else np.zeros(int(part * RATE_HZ), np.int16)
        for part in parts
    ]
    write_wav(path, (np.concatenate(pieces),), RATE_HZ)
    return path


@asynccontextmanager
async def page_with(wav: Path, log: Path) -> AsyncIterator[Page]:
    """A page of a running server; nothing may have gone wrong in it by the end."""
    assert CHROMIUM is not None
    async with running_server(command=FAKES, log=log) as server, chromium(CHROMIUM, wav) as page:
        await page.size(1180, 900)
        await page.goto(f"http://127.0.0.1:{server.port}/")
        yield page
        assert page.console == []


@asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[int]:
    """A server in this process, for what the command line of the fakes does not offer."""
    sock = listen("127.0.0.1", 0)
    server = make_server(build_app(gateway), gateway.config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


async def captions(page: Page, who: str) -> list[str]:
    found: list[str] = await page.evaluate(
        f"[...document.querySelectorAll('.says.{who} p')].map((p) => p.textContent)"
    )
    return found


async def pictures(page: Page, name: str) -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        await page.color_scheme(scheme)
        await page.screenshot(OUT / f"{name}_{scheme}.png")


async def test_a_call_is_captioned_heard_measured_and_interrupted(tmp_path: Path) -> None:
    parts = [2.5, "1_hours", 2.5, "7_interrupt", 12.0]
    wav = microphone(tmp_path / "caller.wav", parts)
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")

        # The caller's words appear while they are said, the unstable ones dimmed.
        await page.until("document.querySelector('.says.caller .unstable')?.textContent")
        await pictures(page, "listening")
        # The agent is heard, and the gap stands in large figures.
        await page.until("voiceloop.stats.totalAudible > 24000")
        await page.until("Number(document.getElementById('gap').textContent) > 0")
        gap_ms = await page.evaluate("voiceloop.turns.finished[0].gapMs")
        assert 0 < gap_ms < 5000

        flush: dict[str, Any] = await page.until(
            "voiceloop.flushes.find((one) => one.playedMs > 0)"
        )
        assert flush["silentAfterMs"] <= SILENT_WITHIN_MS
        assert flush["playedMs"] < 5000  # of a reply of five seconds
        await page.until("document.querySelector('.says.agent.interrupted .cut') !== null")
        heard = next(line for line in await captions(page, "agent") if "interrupted" in line)
        assert "so that you can interrupt" not in heard

        # The interruption is answered too, and the server says where the time went.
        await page.until("voiceloop.turns.finished.length >= 2")
        await page.until("document.querySelectorAll('svg.waterfall').length >= 2")
        turn = await page.evaluate("voiceloop.turns.finished[1]")
        assert sum(stage["ms"] for stage in turn["stages"]) == pytest.approx(turn["gapMs"], abs=10)
        assert await captions(page, "caller") == ["well this is what i said"] * 2
        await pictures(page, "call")
        await page.size(390, 844)
        await pictures(page, "narrow")


async def test_push_to_talk_by_the_space_bar(tmp_path: Path) -> None:
    wav = microphone(tmp_path / "caller.wav", ["1_hours"] * 6)
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.evaluate("document.querySelector('#settings-card').open = true")
        await page.evaluate("document.querySelector('[value=push-to-talk]').click()")
        await pictures(page, "settings")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        await page.until("document.activeElement.id === 'talk'")
        await page.until("voiceloop.stats.totalAudible > 0 && voiceloop.playing === null")

        await page.key("Space", " ", is_down=True)
        held = "document.getElementById('talk').getAttribute('aria-pressed')"
        assert await page.evaluate(held) == "true"
        await page.until("voiceloop.audio.now - voiceloop.heldSince > 1.5")
        await page.key("Space", " ", is_down=False)
        assert await page.evaluate(held) == "false"
        await page.until("voiceloop.turns.finished.length === 1")
        assert await captions(page, "caller") == ["well this is what i said"]

        # Pressing again takes the floor from an agent that speaks.
        await page.key("Space", " ", is_down=True)
        flush = await page.until("voiceloop.flushes.find((one) => one.playedMs > 0)")
        assert flush["silentAfterMs"] <= SILENT_WITHIN_MS
        await page.key("Space", " ", is_down=False)


async def test_a_server_with_keys_is_opened_by_the_key_in_the_settings(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    gateway = Gateway(Config(keys=("secret-key-1",)), AgentConfig(), fake_backends())
    async with serving(gateway) as port, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.getElementById('status').textContent.includes('API key')")
        assert await page.evaluate("document.getElementById('start').hidden") is False
        await page.evaluate("document.querySelector('[name=key]').value = 'secret-key-1'")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        assert "secret" not in await page.evaluate("JSON.stringify(localStorage)")


async def test_a_field_emptied_in_mid_call_is_the_agents_again(tmp_path: Path) -> None:
    wav = microphone(tmp_path / "caller.wav", [30.0])
    form = "voiceloop.settings.form.elements"
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.evaluate("document.getElementById('start').click()")
        await page.until("voiceloop?.settings.own.instructions !== undefined")
        own = await page.evaluate("voiceloop.settings.own.instructions")
        await page.evaluate(f"{form}.instructions.value = 'Be terse.'")
        said = await page.evaluate("voiceloop.settings.session().instructions")
        await page.evaluate(f"{form}.instructions.value = ''")
        emptied = await page.evaluate("voiceloop.settings.session().instructions")
    assert (said, emptied) == ("Be terse.", own)


async def test_everything_that_takes_a_key_press_has_a_name(tmp_path: Path) -> None:
    wav = microphone(tmp_path / "caller.wav", [30.0])
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.evaluate("document.querySelector('#settings-card').open = true")
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
    roles = {"button", "textbox", "radio", "combobox", "DisclosureTriangle"}
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles
    ]
    assert len(named) >= 7 and all(name.strip() for _, name in named), named


async def test_a_broken_line_comes_back_with_the_conversation(tmp_path: Path) -> None:
    wav = microphone(tmp_path / "caller.wav", [1.5, "1_hours", 60.0])
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.evaluate("document.getElementById('start').click()")
        await page.until("voiceloop.turns.finished.length === 1")
        await page.until("document.body.dataset.line === 'open' && voiceloop.playing === null")
        said = await page.evaluate("voiceloop.view.conversation().length")
        assert said >= 2
        await page.evaluate("voiceloop.connection.socket.close(4000)")
        await page.until("document.body.dataset.line === 'lost'")
        await page.until("document.body.dataset.line === 'open'")
        await page.until("document.querySelector('.note') !== null")
        await page.evaluate("document.getElementById('stop').click()")
        assert await page.evaluate("document.activeElement.id") == "start"
