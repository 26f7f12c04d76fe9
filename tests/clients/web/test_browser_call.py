"""The page in a real browser against a real server on scripted models, with a WAV as microphone.

Screenshots are written to out/web (light, dark, narrow), for a person to look at.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from shutil import which
from socket import AF_INET, SOCK_DGRAM, socket
from typing import Any

import numpy as np
import pytest

from benchmarks.calls.fake_server import fake_backends
from clients.recording import read_flac, write_wav
from clients.server_process import free_port, running_server
from tests.clients.web.chromium import Page, chromium, find_chromium
from tests.fakes import FakeLanguageModel, FakeRecognizer, FakeVoice, Reply
from tests.serving import serving
from tests.waiting import until
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends, ToolCall
from voiceloop.capabilities import Capabilities
from voiceloop.config import Config
from voiceloop.models.catalog import EMBEDDED_AGENT
from voiceloop.operation import WebRtcSettings
from voiceloop.server.app import Gateway, build_app

CHROMIUM = find_chromium()
pytestmark = [
    pytest.mark.call(seconds=130),
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
async def page_with(wav: Path, log: Path, transport: str = "websocket") -> AsyncIterator[Page]:
    """A page of a running server; nothing may have gone wrong in it by the end."""
    assert CHROMIUM is not None
    async with running_server(command=FAKES, log=log) as server, chromium(CHROMIUM, wav) as page:
        await page.size(1180, 900)
        await page.goto(f"http://127.0.0.1:{server.port}/?transport={transport}")
        await page.until("document.querySelector('h1').textContent !== 'Talk to the agent'")
        yield page
        assert page.console == []


@asynccontextmanager
async def with_doors(gateway: Gateway) -> AsyncIterator[int]:
    """A server in this process, for what the command line of the fakes does not offer."""
    async with serving(build_app(gateway), gateway.config) as port:
        yield port
    gateway.doors.close()


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


@pytest.mark.parametrize(
    ("transport", "told"), [("websocket", "over a WebSocket"), ("webrtc", "over WebRTC")]
)
async def test_a_call_is_captioned_heard_measured_and_interrupted(
    tmp_path: Path, transport: str, told: str
) -> None:
    parts = [2.5, "1_hours", 2.5, "7_interrupt", 12.0]
    wav = microphone(tmp_path / "caller.wav", parts)
    async with page_with(wav, tmp_path / "server.log", transport) as page:
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        assert await page.evaluate("document.getElementById('carrier').textContent") == told

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

        # What is shown is what the loudspeaker did: silent once its last audible sample had played.
        shown = await page.evaluate("document.getElementById('silence').textContent")
        assert shown == f"{round(flush['silentAfterOnsetMs'])} ms"

        # The interruption is answered too, and the server says where the time went.
        await page.until("voiceloop.turns.finished.length >= 2")
        await page.until("document.querySelectorAll('svg.waterfall').length >= 2")
        turn = await page.evaluate("voiceloop.turns.finished[1]")
        assert sum(stage["ms"] for stage in turn["stages"]) == pytest.approx(turn["gapMs"], abs=10)
        assert await captions(page, "caller") == ["well this is what i said"] * 2
        await pictures(page, "call")
        await page.size(390, 844)
        await pictures(page, "narrow")


TELL_CUTS = """(() => {
  globalThis.cuts = [];
  const receive = voiceloop.receive.bind(voiceloop);
  voiceloop.receive = (event) => {
    if (event.type === "conversation.item.truncated") cuts.push(event.audio_end_ms);
    receive(event);
  };
})()"""


# How often something was played to its end, from the call's first moment on.
COUNT_ENDED = """import("/web/call.js").then(({ Call }) => {
  const { played } = Call.prototype;
  globalThis.nEnded = 0;
  Call.prototype.played = function (message) {
    played.call(this, message);
    if (message.type === "ended") nEnded++;
  };
})"""
# On a busy machine the server hears for so long from a page that it does not know to be pressed.
LATE_SETTINGS = """(() => {
  const { prototype } = RTCDataChannel, { send } = prototype;
  prototype.send = function (text) {
    prototype.send = send;
    setTimeout(() => this.send(text), 300);
  };
})()"""


# How much was audible by each of the next reports of the loudspeaker.
REPORTS = """new Promise((done) => {
  const told = [], played = voiceloop.played.bind(voiceloop);
  voiceloop.played = (message) => {
    if (message.type === "stats" && told.push(message.totalAudible) === 6) done(told);
    played(message);
  };
})"""


# The voice's sample came, and is sound.
SAMPLED = """performance.getEntriesByType("resource")
  .some(({ name, responseStatus }) => name.endsWith("/v1/audio/speech") && responseStatus === 200)
  && !document.getElementById("status").classList.contains("alarm")"""


@pytest.mark.parametrize("transport", ["websocket", "webrtc"])
async def test_push_to_talk_by_the_space_bar(tmp_path: Path, transport: str) -> None:
    wav = microphone(tmp_path / "caller.wav", ["1_hours"] * 6)
    async with page_with(wav, tmp_path / "server.log", transport) as page:
        await page.evaluate(LATE_SETTINGS)
        await page.evaluate(COUNT_ENDED)
        await page.evaluate("document.querySelector('#settings-card').open = true")
        await page.evaluate("document.getElementById('sample').click()")
        await page.until(SAMPLED)
        await page.evaluate("document.querySelector('[value=push-to-talk]').click()")
        await pictures(page, "settings")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        await page.until("document.activeElement.id === 'talk'")
        # Sound may be ahead of its news: that nothing plays says little before the first end.
        await page.until("nEnded === 1 && voiceloop.playing === null")
        assert all(await page.evaluate(REPORTS))  # one loudspeaker tells, not both
        # Nothing is heard of who has not pressed yet, whatever changes meanwhile.
        eagerness = "voiceloop.settings.form.elements.eagerness"
        await page.evaluate(f"{eagerness}.dispatchEvent(new Event('change', {{bubbles: true}}))")
        assert await page.evaluate("voiceloop.audio.track.enabled") is (transport == "websocket")
        assert not await page.evaluate("lastEvents.some((one) => one.includes('speech_started'))")

        await page.key("Space", " ", is_down=True)
        held = "document.getElementById('talk').getAttribute('aria-pressed')"
        assert await page.evaluate(held) == "true"
        await page.until("voiceloop.audio.now - voiceloop.heldSince > 1.5")
        await page.key("Space", " ", is_down=False)
        assert await page.evaluate(held) == "false"
        await page.until("voiceloop.turns.finished.length === 1")
        assert await captions(page, "caller") == ["well this is what i said"]
        turn = await page.evaluate("voiceloop.turns.finished[0]")
        assert turn["callerEnd"] == await page.evaluate("voiceloop.releasedAt")

        # Pressing again takes the floor from an agent that speaks.
        await page.evaluate(TELL_CUTS)
        await page.key("Space", " ", is_down=True)
        flush = await page.until("voiceloop.flushes.find((one) => one.playedMs > 0)")
        assert flush["silentAfterMs"] <= SILENT_WITHIN_MS
        # History keeps what the page played: what its buffer held is not heard.
        await page.until(f"cuts.includes({flush['playedMs']})")
        await page.key("Space", " ", is_down=False)


def keyed(*keys: str) -> Gateway:
    return Gateway(Config(keys=keys), AgentConfig(), fake_backends())


async def test_a_missing_key_and_a_wrong_one_are_told_apart_where_the_key_is_asked_for(
    tmp_path: Path,
) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    told = "document.getElementById('status').textContent"
    key = "document.querySelector('[name=key]')"
    async with with_doors(keyed("secret-key-1")) as port, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.until("document.getElementById('settings-card').open")
        await page.evaluate("document.getElementById('settings-card').open = false")
        await page.evaluate("document.getElementById('start').click()")
        await page.until(f"{told} === 'The call cannot start: the server wants an API key'")
        assert await page.evaluate("document.getElementById('settings-card').open")
        assert await page.evaluate("document.activeElement.name") == "key"
        assert await page.evaluate("document.getElementById('start').hidden") is False

        await page.evaluate(f"{key}.value = 'secret-key-2'")
        await page.evaluate("document.getElementById('start').click()")
        await page.until(
            f"{told} === 'The call cannot start: the server does not know this API key'"
        )
        assert await page.evaluate(f"{key}.getAttribute('aria-invalid')") == "true"
        await pictures(page, "key")

        await page.evaluate(f"{key}.value = 'secret-key-1'")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        assert "secret" not in await page.evaluate("JSON.stringify(localStorage)")


async def test_a_key_that_no_subprotocol_can_carry_opens_the_call_too(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    keys = ("a,key;of/=signs", "c2VjcmV0IGtleQ==")
    gateway = keyed(*keys)
    async with with_doors(gateway) as port, chromium(CHROMIUM, wav) as page:
        for key in keys:
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.evaluate(f"document.querySelector('[name=key]').value = '{key}'")
            await page.evaluate("document.getElementById('start').click()")
            await page.until("document.body.dataset.line === 'open'")
            await page.evaluate("document.getElementById('stop').click()")
            await until(lambda: not gateway.admission.n_inside)


async def test_what_the_person_left_alone_stays_the_agents_own(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    agent = AgentConfig(eagerness="low", instructions="Be kind.")
    asked = "voiceloop.settings.session()"
    form = "voiceloop.settings.form.elements"
    gateway = Gateway(Config(), agent, fake_backends())
    async with with_doors(gateway) as port, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{port}/?transport=websocket")
        await page.evaluate("document.getElementById('start').click()")
        await page.until("document.body.dataset.line === 'open'")
        untouched = {
            "type": "realtime",
            "audio": {"input": {"transcription": {"model": "whisper-1"}}},
        }
        assert await page.evaluate(asked) == untouched
        own = await page.evaluate(f"{form}.eagerness.selectedOptions[0].textContent")
        assert own == "agent’s own (low)"

        await page.evaluate(f"{form}.eagerness.value = 'high'")
        await page.evaluate(f"{form}.instructions.value = 'Be terse.'")
        chosen = await page.evaluate(asked)
        assert chosen["instructions"] == "Be terse."
        assert chosen["audio"]["input"]["turn_detection"]["eagerness"] == "high"

        # Emptied in mid-call they are the agent's again.
        await page.evaluate(f"{form}.eagerness.value = ''")
        await page.evaluate(f"{form}.instructions.value = ''")
        emptied = await page.evaluate(asked)
        assert emptied["instructions"] == "Be kind."
        assert emptied["audio"]["input"]["turn_detection"]["eagerness"] == "low"


def cafe() -> Gateway:
    """An agent whose model calls a tool that only a client could answer, then says so."""
    book = AgentTool("book", parameters={"type": "object", "properties": {"day": {}}})
    agent = AgentConfig(name="Ava", try_saying=("How much is a latte?", "Bye."), tools=(book,))
    call = Reply("", (ToolCall("call_1", "book", '{"day": "monday"}'),))
    model = FakeLanguageModel(
        lambda messages: "I cannot book that." if messages[-1].role == "tool" else call
    )
    known = Capabilities(frozenset({"ava", "ben"}), "hibari", recognizer="moonshine-tiny")
    backends = Backends(
        FakeRecognizer(("well this is what i said",)), model, FakeVoice(), lambda: known
    )
    return Gateway(Config(preset="embedded"), agent, backends)


async def test_who_meets_the_demonstration_model_is_told_what_it_is(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    fake = fake_backends()
    async with chromium(CHROMIUM, wav) as page:
        for model, is_told in ((EMBEDDED_AGENT.name, True), ("qwen", False)):
            known = Capabilities(language_model=model)
            backends = Backends(
                fake.recognizer, fake.language_model, fake.voice, lambda known=known: known
            )
            gateway = Gateway(Config(preset="embedded"), AgentConfig(name="Billie"), backends)
            async with with_doors(gateway) as port:
                await page.goto(f"http://127.0.0.1:{port}/")
                await page.until("document.querySelector('h1').textContent === 'Talk to Billie'")
                line = await page.evaluate("document.getElementById('limits').textContent")
                assert ("demonstration model (13M)" in line) is is_told
                hidden = await page.evaluate("document.getElementById('limits').hidden")
                assert hidden is not is_told


async def test_typed_words_are_answered_aloud_and_an_unanswered_tool_is_told_and_ended(
    tmp_path: Path,
) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [60.0])
    async with with_doors(cafe()) as port, chromium(CHROMIUM, wav) as page:
        await page.size(1180, 900)
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.until("document.querySelectorAll('#try-list button').length === 2")
        assert await page.evaluate("document.querySelector('h1').textContent") == "Talk to Ava"
        models = await page.evaluate("document.getElementById('models').textContent")
        assert models == "preset embedded: hears with moonshine-tiny, speaks with hibari"
        voices = "[...document.querySelector('[name=voice]').options].map((one) => one.value)"
        assert await page.evaluate(voices) == ["", "ava", "ben"]
        await pictures(page, "idle")
        await page.size(390, 844)
        await pictures(page, "idle_narrow")
        await page.size(1180, 900)

        # A suggestion begins a call without a microphone.
        await page.evaluate("document.querySelector('#try-list button').click()")
        await page.until("voiceloop.stats.totalAudible > 0")
        assert not await page.evaluate("voiceloop.hasMicrophone")
        assert await captions(page, "caller") == ["How much is a latte?"]
        told = "document.querySelector('.says.tool p')?.textContent ?? ''"
        await page.until(f"({told}).includes('nobody is here who can do book')")
        assert (await page.evaluate(told)).startswith('book {"day": "monday"} = ')
        agent_said = "document.querySelector('.says.agent p')?.textContent"
        await page.until(f"{agent_said} === 'I cannot book that.'")
        assert await page.evaluate("voiceloop.turns.finished.length") == 0  # no last sound, no gap

        await page.evaluate("document.getElementById('microphone').click()")
        await page.until("voiceloop.hasMicrophone && voiceloop.nFrames > 0")
        await page.until("voiceloop.playing === null && voiceloop.openResponse === null")
        await pictures(page, "typed")
        kept = await page.evaluate(
            """import("/web/transcript.js").then(({ transcriptText }) => transcriptText(
                 "Ava", new Date(0), voiceloop.view.captions.asTranscript()))"""
        )
        cut = await page.evaluate(
            """import("/web/transcript.js").then(({ transcriptText }) => transcriptText("Ava",
                 new Date(0), [{ who: "Ava", text: "We close", gapMs: 230, isCut: true }]))"""
        )
        assert cut.splitlines()[-1] == "Ava  We close — interrupted   (230 ms)"
        began_early = await page.evaluate(
            """import("/web/gap.js").then(({ Turns }) => {
                 const turns = new Turns(24000);
                 turns.callerStopped(0);
                 turns.replyArrives("item", "response", 0.1);
                 turns.audible("item", 0.2);
                 const told = { turn_id: "response", stages: [], cut: "soft", cut_over_ms: 41.6 };
                 return turns.timeline(told).cut;
               })"""
        )
        assert began_early == "soft cut, heard over you for 42 ms"
        title, _, empty, asked, used, answered = kept.splitlines()
        assert title.startswith("A call with Ava, ") and empty == ""
        assert asked == "You   How much is a latte?" and answered == "Ava   I cannot book that."
        assert used.startswith('Tool  book {"day": "monday"} = ')
        await page.evaluate("document.getElementById('stop').click()")
        assert await page.evaluate("document.getElementById('download').hidden") is False
        assert page.console == []


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
        # A line that breaks while the agent speaks is no barge-in.
        await page.evaluate("voiceloop.say('And now?')")
        await page.until("voiceloop.playing !== null")
        await page.evaluate("voiceloop.connection.socket.close(4000)")
        await page.until("document.body.dataset.line === 'lost'")
        await page.until("voiceloop.flushes.length > 0")
        assert await page.evaluate("voiceloop.turns.silences.length") == 0
        await page.until("document.body.dataset.line === 'open'")
        await page.until("document.querySelector('.note') !== null")
        assert await page.evaluate("voiceloop.nResumed") == 1
        # Without a ticket that is good the page tells the server what was said.
        await page.evaluate("voiceloop.connection.ticket = {ticket: 'rt_x.y.z', returns: 'rt_x.y'}")
        await page.evaluate("voiceloop.connection.socket.close(4000)")
        await page.until("document.body.dataset.line === 'lost'")
        await page.until("document.body.dataset.line === 'open' && voiceloop.isReady")
        assert await page.evaluate("voiceloop.nResumed") == 1
        # So it does where the server says by another code that the ticket is none.
        await page.evaluate("voiceloop.connection.ticket = {ticket: 5, returns: 'x'}")
        await page.evaluate("voiceloop.connection.socket.close(4000)")
        await page.until("document.body.dataset.line === 'lost'")
        await page.until("document.body.dataset.line === 'open' && voiceloop.isReady")
        await page.evaluate("document.getElementById('stop').click()")
        assert await page.evaluate("document.activeElement.id") == "start"


async def test_a_broken_line_of_webrtc_is_resumed_over_webrtc(tmp_path: Path) -> None:
    wav = microphone(tmp_path / "caller.wav", [1.5, "1_hours", 60.0])
    async with page_with(wav, tmp_path / "server.log", "webrtc") as page:
        await page.evaluate("document.getElementById('start').click()")
        await page.until("voiceloop.turns.finished.length === 1")
        await page.until("voiceloop.playing === null && voiceloop.connection.ticket !== null")
        await page.evaluate("voiceloop.connection.line.lost('the line broke')")
        await page.until("document.body.dataset.line === 'lost'")
        await page.until("document.body.dataset.line === 'open'")
        assert await page.evaluate("[voiceloop.nResumed, voiceloop.isRtc]") == [1, True]
        await page.evaluate("voiceloop.say('And now?')")
        await page.until("voiceloop.playing !== null")


COUNT_PEERS = """(() => {
  globalThis.nPeers = 0;
  globalThis.RTCPeerConnection = class extends RTCPeerConnection {
    constructor(...told) {
      super(...told);
      nPeers++;
    }
  };
})()"""


async def test_where_udp_is_shut_the_call_goes_over_a_websocket_and_says_so(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [30.0])
    nowhere = WebRtcSettings(address="192.0.2.1")  # RFC 5737: an address of examples
    gateway = Gateway(Config(webrtc=nowhere), AgentConfig(name="Ava"), fake_backends())
    async with with_doors(gateway) as port, chromium(CHROMIUM, wav) as page:
        await page.goto(f"http://127.0.0.1:{port}/")
        await page.until("document.querySelector('h1').textContent === 'Talk to Ava'")
        await page.evaluate(COUNT_PEERS)
        for _ in range(2):  # the second call of a page does not try it again
            await page.evaluate("document.getElementById('start').click()")
            await page.until("document.body.dataset.line === 'open'", 6.0)
            assert await page.evaluate("nPeers") == 1
            carrier = await page.evaluate("document.getElementById('carrier').textContent")
            assert carrier == "over a WebSocket"
            await page.evaluate("document.getElementById('stop').click()")
        assert page.console == []


# A browser whose network lets nothing out but to the TURN server.
RELAY_ALONE = """(() => {
  const configure = RTCPeerConnection.prototype.setConfiguration;
  RTCPeerConnection.prototype.setConfiguration = function (told) {
    globalThis.told = told;
    globalThis.peer = this;
    return configure.call(this, { ...told, iceTransportPolicy: "relay" });
  };
})()"""
PATH_TAKEN = """peer.getStats().then((stats) => {
  const pair = [...stats.values()].find((one) => one.type === "candidate-pair" && one.nominated);
  return stats.get(pair.localCandidateId).candidateType;
})"""


@asynccontextmanager
async def coturn(secret: str) -> AsyncIterator[int]:
    """A TURN server on the loopback that takes what `secret` has signed; its port."""
    for _ in range(4):  # somebody else may take the port before it does: then it stands there mute
        port = free_port()
        process = await asyncio.create_subprocess_exec(
            "turnserver", "-n", "--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1",
            f"--listening-port={port}", "--use-auth-secret", f"--static-auth-secret={secret}",
            "--realm=voiceloop", "--allow-loopback-peers", "--no-tls", "--no-dtls", "--no-cli",
            "--no-tcp", "--pidfile=", "--log-file=stdout", "--simple-log",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for _ in range(60):  # 6 to 18 s
                if process.returncode is None and await asyncio.to_thread(answers_checks, port):
                    yield port
                    return
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
    raise AssertionError("expected a TURN server, found that none of four answers")


def answers_checks(port: int) -> bool:
    """Whether something answers a STUN binding request there, within 0.2 s."""
    request = b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12)  # RFC 8489, 5
    with socket(AF_INET, SOCK_DGRAM) as asking, suppress(OSError):
        asking.settimeout(0.2)
        asking.connect(("127.0.0.1", port))
        asking.send(request)
        return asking.recv(100).startswith(b"\x01\x01")
    time.sleep(0.1)  # nobody listens yet
    return False


@pytest.mark.skipif(which("turnserver") is None, reason="no coturn: apt-get install coturn")
@pytest.mark.parametrize(
    ("secret", "told"), [("north", "over WebRTC"), ("south", "over a WebSocket")]
)
async def test_behind_a_firewall_the_call_goes_through_the_turn_server_that_knows_its_secret(
    tmp_path: Path, secret: str, told: str
) -> None:
    assert CHROMIUM is not None
    wav = microphone(tmp_path / "caller.wav", [1.5, "1_hours", 30.0])
    async with coturn("north") as turn:
        servers = {f"turn:127.0.0.1:{turn}?transport=udp": secret}
        config = Config(webrtc=WebRtcSettings(ice_servers=servers))
        gateway = Gateway(config, AgentConfig(name="Ava"), fake_backends())
        async with with_doors(gateway) as port, chromium(CHROMIUM, wav) as page:
            await page.goto(f"http://127.0.0.1:{port}/")
            await page.until("document.querySelector('h1').textContent === 'Talk to Ava'")
            await page.evaluate(RELAY_ALONE)
            await page.evaluate("document.getElementById('start').click()")
            await page.until("document.body.dataset.line === 'open'")
            assert await page.evaluate("document.getElementById('carrier').textContent") == told
            assert await page.evaluate("told.iceServers[0].username.endsWith(':voiceloop')")
            if secret == "north":
                assert await page.evaluate(PATH_TAKEN) == "relay"
                await page.until("voiceloop.turns.finished.length === 1")  # heard both ways
            await page.evaluate("document.getElementById('stop').click()")
            await until(lambda: not gateway.admission.n_inside)


async def test_silence_is_counted_from_the_last_audible_sample_not_from_the_news(
    tmp_path: Path,
) -> None:
    """A server that holds its sound lets the queue run dry long before the client is told."""
    wav = microphone(tmp_path / "caller.wav", [30.0])
    async with page_with(wav, tmp_path / "server.log") as page:
        found = await page.evaluate(
            """(async () => {
              const { openAudio } = await import("/web/audio.js");
              const messages = [];
              const audio = await openAudio({ onPlayback: (message) => messages.push(message) });
              const wait = async (type) => {
                while (!messages.some((one) => one.type === type)) {
                  await new Promise((done) => setTimeout(done, 10));
                }
                return messages.find((one) => one.type === type);
              };
              audio.push("item", new Int16Array(7200).fill(8000)); // 300 ms, and no more comes
              const begun = await wait("audible");
              await new Promise((done) => setTimeout(done, 1000));
              audio.flush({ onsetAt: null, askedAt: audio.now });
              const flushed = await wait("flushed");
              await audio.close();
              return { ...flushed, lastedMs: 1000 * (flushed.silentAt - begun.at) };
            })()"""
        )
    assert found["nPlayed"] == 7200
    # A busy machine leaves quanta of the audio thread out: its clock goes on and no sample is lost.
    assert 299 <= found["lastedMs"] < 600
    assert found["cause"]["askedAt"] - found["silentAt"] > 0.5


# A line whose channel opens and whose server speaks once it was given up, before the server has
# answered that it may hang up.
GIVEN_UP = """(async () => {
  const told = [];
  let peer, hungUp;
  globalThis.RTCPeerConnection = class {
    constructor() { peer = this; }
    createDataChannel() { return (this.channel = { readyState: "connecting" }); }
    setConfiguration() {}
    addTransceiver() { return {}; }
    setLocalDescription() { this.localDescription = { sdp: "v=0" }; }
    setRemoteDescription() {}
    close() { told.push("closed"); }
  };
  globalThis.fetch = (url) => url.endsWith("/hangup")
    ? new Promise((done) => (hungUp = done))
    : Promise.resolve(new Response("v=0", { headers: { Location: "/v1/realtime/calls/one" } }));
  const { openRtc } = await import("/web/rtc.js");
  const given = new AbortController();
  const opening = openRtc({
    url: location.href, signal: given.signal, onClosed: () => {},
    onEvent: (event) => told.push(event.type), onStream: () => told.push("stream"),
  });
  while (!peer.channel.onopen) await new Promise((done) => setTimeout(done, 10));
  given.abort();
  await opening.catch((error) => told.push(error.message));
  peer.channel.onmessage?.({ data: '{"type": "session.created"}' });
  peer.ontrack?.({ streams: [], track: null });
  hungUp();
  await new Promise((done) => setTimeout(done, 10));
  return told;
})()"""


async def test_a_line_that_was_given_up_brings_nothing_into_the_call_that_goes_on(
    tmp_path: Path,
) -> None:
    wav = microphone(tmp_path / "caller.wav", [30.0])
    async with page_with(wav, tmp_path / "server.log") as page:
        assert await page.evaluate(GIVEN_UP) == ["given up", "closed"]


async def test_after_a_click_nothing_looks_pressed_and_after_the_call_nothing_is_promised(
    tmp_path: Path,
) -> None:
    wav = microphone(tmp_path / "caller.wav", [1.0, "1_hours", 30.0])
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.click("#start")
        await page.until("document.body.dataset.line === 'open'")
        assert await page.evaluate("document.querySelector('button:focus-visible')") is None
        await page.until("voiceloop.turns.finished.length === 1")
        await page.click("#stop")
        assert "the stages come" not in await page.evaluate("document.body.innerText")
        assert await page.evaluate("document.querySelectorAll('#turns li').length") == 1
        status = await page.evaluate("document.getElementById('status').textContent")
        assert status == "Not in a call"


async def test_on_a_phone_the_conversation_comes_first_and_the_buttons_stay_in_reach(
    tmp_path: Path,
) -> None:
    wav = microphone(tmp_path / "caller.wav", [1.0, "1_hours", 30.0])
    top = "document.getElementById('{}').getBoundingClientRect().top"
    async with page_with(wav, tmp_path / "server.log") as page:
        await page.size(390, 844)
        await page.evaluate("document.getElementById('start').click()")
        await page.until("voiceloop.turns.finished.length === 1")
        assert await page.evaluate(top.format("captions")) < 844 / 4
        assert await page.evaluate(top.format("captions")) < await page.evaluate(top.format("gap"))
        bar = await page.evaluate("document.getElementById('call').getBoundingClientRect().bottom")
        assert 0 < bar <= 844
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
