"""Calls over each carrier and exchange, on real sockets, by a scripted far end in real time."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import connect

from benchmarks.phone.peers import CALLED, CALLER, TOKEN, TelnyxPeer
from benchmarks.phone.telephone import TcpStream, Telephone
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, utterance
from tests.phone_server import phone_served
from tests.waiting import until
from voiceloop.call.connection import Hello
from voiceloop.server.app import Gateway

TELNYX_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
TELNYX_PUBLIC = base64.b64encode(TELNYX_KEY.public_key().public_bytes_raw()).decode()
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."
NAMES = ("twilio", "signalwire", "telnyx", "plivo", "vonage", "asterisk", "audiosocket")


class Beside:
    """A seat beside the call of a telephone: its events, in order."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self.events: list[dict[str, Any]] = []

    async def until(self, kind: str, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(20.0):
            while len(found := [one for one in self.events if one["type"] == kind]) < count:
                self.events.append(json.loads(await self._socket.recv()))
        return found[count - 1]


async def dial(gateway: Gateway, name: str) -> Telephone:
    """A call as this carrier or exchange brings it."""
    url = gateway.config.phone.public_url
    phone = Telephone.of(url, name)
    if isinstance(phone.peer, TelnyxPeer):
        phone.peer.private_key = TELNYX_KEY
    if name == "asterisk":
        query = f"from={CALLER[1:]}&to={CALLED[1:]}&call={phone.peer.call}&X-Order=7"
        await phone.open(f"ws{url[4:]}/v1/phone/asterisk/stream?{query}", "")
    elif name == "audiosocket":
        given = await ask_for_uuid(url)
        port = gateway.config.phone.audiosocket.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await phone.attach(TcpStream(reader, writer))
        phone.peer.call = given.text
        for frame in phone.peer.opening(given.text):
            await phone.send(frame)
    else:
        await phone.dial()
    return phone


async def ask_for_uuid(url: str) -> httpx.Response:
    fields = {"from": CALLER, "to": CALLED, "X-Order": "7"}
    async with httpx.AsyncClient(trust_env=False, auth=("voiceloop", TOKEN)) as http:
        told = await http.post(f"{url}/v1/phone/audiosocket", data=fields)
    assert told.status_code == 200, told.text
    return told


def heard_of(gateway: Gateway) -> list[Hello]:
    return [line.hello for line in gateway.doors.calls._calls.values()]


async def greeted(phone: Telephone) -> None:
    """Wait until the agent has said its greeting."""
    now = asyncio.get_running_loop().time
    await until(lambda: phone.loud_at() and now() - phone.loud_at()[-1] > 0.4)


@pytest.mark.parametrize("name", NAMES)
async def test_a_caller_is_greeted_answered_and_flushes_the_agent(name: str) -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "something else now"], ms_per_word=200),
        language_model=FakeLanguageModel([LONG, "Sure."]),
    )
    async with phone_served(backends, telnyx_key=TELNYX_PUBLIC) as (gateway, url):
        phone = await dial(gateway, name)
        await greeted(phone)
        [hello] = heard_of(gateway)
        assert hello.phone is not None and hello.phone.door == name
        assert hello.phone.caller.lstrip("+") == CALLER[1:]
        async with connect(f"ws{url[4:]}/v1/realtime?call_id={phone.peer.call}") as socket:
            beside = Beside(socket)
            await beside.until("session.created")
            await phone.speak(utterance(700, 24_000))
            said_at = asyncio.get_running_loop().time()
            await beside.until("output_audio_buffer.started")
            await until(lambda: bool(phone.loud_at(said_at)))
            await asyncio.sleep(0.6)
            await phone.speak(utterance(900, 24_000))
            cut = await beside.until("conversation.item.truncated")
            await beside.until("output_audio_buffer.cleared")
            [first, *_] = phone.loud_at(said_at)
            played = [at for at in phone.loud_at(first) if at < asyncio.get_running_loop().time()]
            heard_ms = 20.0 * len(played)
            assert abs(cut["audio_end_ms"] - heard_ms) < 400.0  # a word; the machine may be busy
            await phone.press("5")
            await until(lambda: bool(phone.loud_at(phone.heard[-1][0] - 10.0)))
        flushes = name not in ("asterisk", "audiosocket")
        assert bool(phone.cleared_at) == flushes
        await phone.hang_up()
        await until(lambda: not gateway.n_sessions and not len(gateway.doors.calls))
