"""Calls over each carrier and exchange, on real sockets, by a scripted far end in real time."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from benchmarks.phone.peers import CALLED, CALLER, TOKEN, AudioSocketPeer, TelnyxPeer
from benchmarks.phone.telephone import TcpStream, Telephone
from tests.fakes import FakeLanguageModel, FakeRecognizer, instant_backends, utterance
from tests.phone_server import phone_served
from tests.waiting import until
from voiceloop.backends import RecognizerOptions
from voiceloop.call.connection import Hello
from voiceloop.doors.carriers import door
from voiceloop.doors.carriers.dialect import Heard
from voiceloop.doors.carriers.legs import Legs, LegStream
from voiceloop.doors.carriers.sound import FarSound
from voiceloop.doors.carriers.stream import StreamEnd
from voiceloop.doors.line import Line
from voiceloop.operation import Limits
from voiceloop.phone_settings import PhoneSettings
from voiceloop.server.app import Gateway
from voiceloop.server.process import listen
from voiceloop.telephony import Announcement, PhoneCall

pytestmark = pytest.mark.virtual_time

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
        port = gateway.config.phone.audiosocket_address[1]
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
async def test_a_caller_is_greeted_answered_and_flushes_the_agent(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pressed: list[str] = []
    monkeypatch.setattr(Line, "press", lambda self, key: pressed.append(key))
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
            await until(lambda: pressed == ["5"])
        flushes = name not in ("asterisk", "audiosocket")
        assert bool(phone.cleared_at) == flushes
        await phone.hang_up()
        await until(lambda: not gateway.n_sessions and not len(gateway.doors.calls))


class Watched(FakeRecognizer):
    """Counts how often a call has opened it, as each does when it begins."""

    n_opened = 0

    async def open(self, stream_id: str, options: RecognizerOptions) -> Any:
        self.n_opened += 1
        return await super().open(stream_id, options)


def no_model_was_asked(gateway: Gateway, recognizer: Watched) -> bool:
    return not gateway.n_sessions and not len(gateway.doors.calls) and not recognizer.n_opened


@pytest.mark.parametrize("name", ["twilio", "signalwire", "telnyx", "plivo", "vonage"])
async def test_a_forged_or_replayed_ring_is_refused_and_no_model_is_asked(name: str) -> None:
    recognizer = Watched()
    async with phone_served(instant_backends(recognizer=recognizer), telnyx_key=TELNYX_PUBLIC) as (
        gateway,
        url,
    ):
        phone = Telephone.of(url, name)
        if isinstance(phone.peer, TelnyxPeer):
            phone.peer.private_key = TELNYX_KEY
        full = f"{url}/v1/phone/{name}"
        body, headers = phone.peer.ring(full)
        async with httpx.AsyncClient(trust_env=False) as http:
            forged = await http.post(
                full, content=body.replace(b"491511", b"491519"), headers=headers
            )
            unsigned = {"content-type": headers["content-type"]}
            bare = await http.post(full, content=body, headers=unsigned)
            # A header of the request says nothing about where it was sent.
            elsewhere = await http.post(
                full, content=phone.peer.ring("https://evil.example")[0],
                headers={**phone.peer.ring("https://evil.example")[1], "host": "evil.example"}
            ) if name not in ("telnyx", "vonage") else bare  # fmt: skip
            assert {forged.status_code, bare.status_code, elsewhere.status_code} == {403}
            rung = await http.post(full, content=body, headers=headers)
            assert rung.status_code == 200
            assert no_model_was_asked(gateway, recognizer)
            await phone.open(*phone.peer.stream_of(rung.text))
            await greeted(phone)
            replayed = await http.post(full, content=body, headers=headers)
            assert replayed.status_code == 403
        await phone.hang_up()


@pytest.mark.parametrize("fault", ["ticket", "call", "signature", "used", "late", "silent", "huge"])
async def test_a_stream_that_proves_nothing_is_closed_and_no_model_is_asked(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "START_S", 0.3)
    recognizer = Watched()
    async with phone_served(instant_backends(recognizer=recognizer)) as (gateway, _):
        url = gateway.config.phone.public_url
        phone = Telephone.of(url, "twilio")
        stream, ticket = phone.peer.stream_of((await phone.post()).text)
        if fault == "signature":
            with pytest.raises(InvalidStatus) as refused:
                await connect(stream, additional_headers={"x-twilio-signature": "AAAA"})
            assert refused.value.response.status_code == 403
            assert no_model_was_asked(gateway, recognizer)
            return
        if fault == "used":
            other = Telephone(url, phone.peer)
            await other.open(stream, ticket)
            await until(lambda: gateway.n_sessions == 1)
            await other.hang_up()
            await until(lambda: not gateway.n_sessions)
            recognizer.n_opened = 0
        if fault == "late":
            monkeypatch.setattr("voiceloop.doors.carriers.legs.TICKET_S", 30.0)
            leg = gateway.doors.telephones.sockets[0]._legs.find(phone.peer.call)
            assert leg is not None
            leg.expires_s = 0.0
        if fault == "call":
            phone.peer.call = "CA" + "0" * 32
        socket = await connect(stream, additional_headers=phone.peer.upgrade(stream))
        frames = {"ticket": phone.peer.opening("x" * 32), "silent": [], "huge": ["x" * 70_000]}
        for frame in frames.get(fault, phone.peer.opening(ticket)):
            await socket.send(frame)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        assert no_model_was_asked(gateway, recognizer)
        assert gateway.metrics.registry.get_sample_value(
            "voiceloop_refused_total",
            {"code": "invalid_value" if fault == "huge" else "unproved_call"},
        )


async def test_streams_that_say_nothing_give_way_and_keep_no_call_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "MOST_UNPROVED", 3)
    async with phone_served() as (gateway, url):
        silent = [await connect(f"ws{url[4:]}/v1/phone/plivo/stream") for _ in range(5)]
        for one in silent[:2]:  # long before their five seconds are over
            async with asyncio.timeout(2.0):
                with pytest.raises(ConnectionClosed):
                    await one.recv()
        sockets = {one.path.rpartition("/")[2]: one for one in gateway.doors.telephones.sockets}
        assert len(sockets["plivo"]._waiting) == 3
        phone = await dial(gateway, "plivo")
        await greeted(phone)
        await phone.hang_up()
        for one in silent:
            await one.close()


async def test_a_server_without_room_says_that_the_line_is_busy() -> None:
    async with phone_served(limits=Limits(max_sessions=1), telnyx_key=TELNYX_PUBLIC) as (
        gateway,
        url,
    ):
        first = await dial(gateway, "twilio")
        await greeted(first)
        second = await Telephone.of(url, "twilio").post()
        assert (second.status_code, '<Reject reason="busy"/>' in second.text) == (200, True)
        await first.hang_up()


async def test_a_stream_that_breaks_goes_on_in_another_and_the_call_is_remembered() -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["my name is ada", "what is my name"], ms_per_word=150),
        language_model=FakeLanguageModel(["Hello Ada.", "You are Ada."]),
    )
    async with phone_served(backends) as (gateway, url):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        await phone.speak(utterance(700, 24_000))
        n_heard = len(phone.heard)
        await until(lambda: len(phone.heard) > n_heard + 5)
        await greeted(phone)
        await asyncio.sleep(0.5)  # a ticket follows what has changed by a quarter of a second
        phone._stream.transport.abort()
        again = await phone.post("/after", CallStatus="in-progress")
        stream, ticket = phone.peer.stream_of(again.text)
        assert stream and ticket
        back = Telephone(url, phone.peer)
        await back.open(stream, ticket)
        await until(lambda: gateway.metrics.registry.get_sample_value("voiceloop_resumed_total"))
        async with connect(f"ws{url[4:]}/v1/realtime?call_id={phone.peer.call}") as socket:
            beside = Beside(socket)
            await back.speak(utterance(700, 24_000))
            await beside.until("response.done")
        assert [m.content for m in backends.language_model.prompts[-1]][-3:] == [  # type: ignore[attr-defined]
            "my name is ada", "Hello Ada.", "what is my name",
        ]  # fmt: skip
        orphan = Telephone.of(url, "twilio")  # a server that has ended had this one
        assert orphan.peer.stream_of((await orphan.post("/after", CallStatus="in-progress")).text)[
            1
        ]
        ended = await back.post("/after", CallStatus="completed")
        assert "<Hangup/>" in ended.text
        await back.hang_up()
        await phone.close()


def lines_of(gateway: Gateway) -> list[Line]:
    return list(gateway.doors.calls._calls.values())


def line_of(gateway: Gateway) -> Line:
    [line] = lines_of(gateway)
    return line


async def test_a_transfer_dials_and_brings_back_whoever_reached_nobody() -> None:
    async with phone_served() as (gateway, url):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        assert (line := line_of(gateway)).phone is not None
        await line.phone.transfer("tel:+49301111111", Announcement("Ada & her <order>"))
        await until(phone.ended.is_set)
        dialled = await phone.post("/after", CallStatus="in-progress")
        number = ElementTree.fromstring(dialled.text).find(".//Number")
        assert number is not None and number.text == "+49301111111"
        first = number.get("url", "").partition("/v1/phone/twilio")[2]
        assert "Ada &amp; her &lt;order&gt;" in (await phone.post(first, CallSid="CA2")).text
        back = await phone.post("/after", CallStatus="in-progress", DialCallStatus="busy")
        again = Telephone(url, phone.peer)
        await again.open(*phone.peer.stream_of(back.text))
        await until(lambda: gateway.n_sessions == 1)
        [hello] = heard_of(gateway)
        assert hello.phone is not None and hello.phone.returned == "busy"
        other = await dial(gateway, "twilio")
        await greeted(other)
        [line] = [one for one in lines_of(gateway) if one.hello != hello]
        assert line.phone is not None
        await line.phone.transfer("sip:desk@example.com")
        await until(other.ended.is_set)
        dialled = await other.post("/after", CallStatus="in-progress")
        assert "<Sip>sip:desk@example.com</Sip>" in dialled.text
        done = await other.post("/after", CallStatus="in-progress", DialCallStatus="completed")
        assert "<Hangup/>" in done.text
        await other.close()
        assert (line := line_of(gateway)).phone is not None
        await line.phone.hang_up()
        await until(again.ended.is_set)
        over = await phone.post("/after", CallStatus="in-progress")
        assert "<Hangup/>" in over.text
        await phone.close()
        await again.close()


async def test_the_agent_presses_keys_and_hangs_up_over_an_exchange() -> None:
    async with phone_served() as (gateway, _):
        phone = await dial(gateway, "asterisk")
        await greeted(phone)
        assert (line := line_of(gateway)).phone is not None
        assert line.hello.phone is not None and line.hello.phone.headers == {"X-Order": "7"}
        n_heard = len(phone.heard)
        await line.phone.send_digits("5")
        await until(lambda: len(phone.heard) >= n_heard + 9)  # 180 ms
        await line.phone.transfer("tel:+4930222")
        await until(phone.ended.is_set)
        async with httpx.AsyncClient(trust_env=False, auth=("asterisk", TOKEN)) as http:
            after = f"{gateway.config.phone.public_url}/v1/phone/asterisk/after"
            told = [await http.post(after, data={"call": phone.peer.call}) for _ in range(2)]
        assert [one.text for one in told] == ["tel:+4930222", ""]
        await phone.close()
        back = Telephone(gateway.config.phone.public_url, phone.peer)  # the dial plan dials again
        url = f"ws{back.url[4:]}/v1/phone/asterisk/stream"
        await back.open(f"{url}?call={phone.peer.call}&returned=BUSY", "")
        await until(lambda: gateway.metrics.registry.get_sample_value("voiceloop_resumed_total"))
        assert (line := line_of(gateway)).hello.phone is not None
        assert line.hello.phone.returned == "BUSY"
        await back.close()
        await until(lambda: not gateway.n_sessions)
        phone = await dial(gateway, "audiosocket")
        await greeted(phone)
        assert (line := line_of(gateway)).phone is not None
        await line.phone.hang_up()
        await until(lambda: phone.hung_up and phone.ended.is_set())
        await phone.close()


async def test_a_uuid_that_was_not_given_out_and_a_wrong_password_open_nothing() -> None:
    recognizer = Watched()
    async with phone_served(instant_backends(recognizer=recognizer)) as (gateway, url):
        async with httpx.AsyncClient(trust_env=False, auth=("voiceloop", "guess")) as http:
            assert (await http.post(f"{url}/v1/phone/audiosocket")).status_code == 403
        given = await ask_for_uuid(url)
        port, streams = gateway.config.phone.audiosocket_address[1], []
        for uuid in ("00000000-0000-0000-0000-000000000001", given.text, given.text):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            streams.append(writer)
            for frame in AudioSocketPeer().opening(uuid):
                assert isinstance(frame, bytes)
                writer.write(frame)
            if uuid == given.text and not gateway.n_sessions:
                await until(lambda: gateway.n_sessions == 1)
            else:
                assert await reader.read() == b""
        assert gateway.n_sessions == 1
        with pytest.raises(InvalidStatus):
            await connect(f"ws{url[4:]}/v1/phone/asterisk/stream")
        for writer in streams:
            writer.close()
            await writer.wait_closed()


async def test_without_a_secret_nothing_is_served_and_calls_leave_nothing_behind() -> None:
    async with phone_served(phone=PhoneSettings()) as (gateway, url):
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.post(f"{url}/v1/phone/twilio")).status_code == 404
    async with phone_served() as (gateway, _):
        for number in range(4):
            phone = await dial(gateway, "twilio")
            await until(lambda: gateway.n_sessions == 1)
            await phone.hang_up()
            await until(lambda: not gateway.n_sessions)
            gc.collect()
            if number == 1:
                n_tasks = len(asyncio.all_tasks())
        await until(lambda: len(asyncio.all_tasks()) <= n_tasks)


async def test_calls_that_are_announced_at_once_open_audiosocket_s_port_once() -> None:
    async with phone_served() as (_, url), httpx.AsyncClient(trust_env=False) as http:
        where, auth = f"{url}/v1/phone/audiosocket", ("asterisk", TOKEN)
        told = await asyncio.gather(*(http.post(where, auth=auth) for _ in range(4)))
        assert [one.status_code for one in told] == [200] * 4


async def test_a_port_of_audiosocket_s_that_another_has_is_a_typed_refusal() -> None:
    async with phone_served() as (gateway, url), httpx.AsyncClient(trust_env=False) as http:
        taken = listen("127.0.0.1", gateway.config.phone.audiosocket_address[1])
        with taken:
            told = await http.post(f"{url}/v1/phone/audiosocket", auth=("asterisk", TOKEN))
        assert (told.status_code, told.json()["error"]["code"]) == (503, "server_overloaded")


class Wire:
    """A stream's socket, dialect and line in one: counts what is heard."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self.heard_ms = 0.0

    async def receive(self) -> bytes:
        return await self.frames.get()

    def read(self, frame: bytes) -> Heard:
        return Heard(frame)

    def hear(self, samples: bytes) -> None:
        self.heard_ms += len(samples) / 48.0


async def test_what_waits_in_the_socket_while_our_own_loop_stands_still_is_no_silence() -> None:
    loop: Any = asyncio.get_running_loop()
    wire: Any = Wire()
    owner = LegStream(Legs().ring(PhoneCall("twilio", id="CA1"), 0.0), 0)
    stream = StreamEnd(wire, wire, FarSound("pcmu", 8000), wire, owner)
    reading = asyncio.create_task(stream.run())
    for number in range(50):
        if number == 25:
            loop.virtual_selector.now_s += 0.5  # the machine ran something else
            await asyncio.sleep(0)
        if number < 25:
            await asyncio.sleep(0.02)
        wire.frames.put_nowait(bytes(160))
    await asyncio.sleep(0.01)
    assert wire.heard_ms == pytest.approx(1000, abs=25)
    await asyncio.sleep(1.0)  # what is one is written
    assert 1400 < wire.heard_ms < 1900
    for _ in range(10):
        loop.virtual_selector.now_s += 0.1  # and where every timer is late
        await asyncio.sleep(0.05)
    assert wire.heard_ms > 2400
    reading.cancel()
    await asyncio.wait([reading])
