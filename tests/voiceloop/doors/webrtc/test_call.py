"""Calls over WebRTC on real sockets of this machine, by an aiortc client."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from typing import Any

import aioice.ice
import httpx
import pytest
from aiortc import RTCSessionDescription
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK, InvalidStatus

from clients.connection import typed
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends
from tests.serving import served
from tests.waiting import until
from tests.webrtc_caller import LOUD, WebRtcCaller, calling
from voiceloop.backends import ToolCall
from voiceloop.call.session import Session
from voiceloop.config import Config, Limits
from voiceloop.doors.line import Line
from voiceloop.doors.routes import turn_credentials
from voiceloop.doors.rtp.end import LEAD_MS
from voiceloop.doors.webrtc import door, mux
from voiceloop.doors.webrtc.mux import IceLine
from voiceloop.doors.webrtc.peer import MAX_STREAMS, Peer, SoundTransport
from voiceloop.operation import KeyQuota, WebRtcSettings
from voiceloop.realtime.locks import LOCKABLE

KEYS = ("secret-key-1", "secret-key-2")
CALLS = "/v1/realtime/calls"
TRANSCRIBED: dict[str, Any] = {"transcription": {"language": "en"}}
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def post(url: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.post(url, headers=headers, **body)


def resources() -> tuple[int, int]:
    """Tasks, and open files."""
    gc.collect()
    return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """aioice leaves the address of loopback out."""
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda **kinds: ["127.0.0.1"])


def text_item(text: str) -> dict[str, Any]:
    return typed(text)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_text_turn_is_answered(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aioice.ice, "get_host_addresses", lambda **kinds: [address])
    config = Config(host="0.0.0.0", webrtc=WebRtcSettings(address=address))
    async with served(config=config) as (_, url), calling(url) as caller:
        created = await caller.until("session.created")
        assert created["session"]["instructions"] == "Be kind."
        caller.send("conversation.item.create", item=text_item("hello"))
        caller.send("response.create", response={"output_modalities": ["text"]})
        done = await caller.until("response.done")
        assert done["response"]["status"] == "completed"


async def test_a_spoken_turn_is_heard_and_answered_aloud() -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with served(backends) as (_, url), calling(url) as caller:
        caller.send_when_open("session.update", session={"audio": {"input": TRANSCRIBED}})
        await caller.until("session.updated")
        said_s = await caller.say(700)
        heard = await caller.until("conversation.item.input_audio_transcription.completed")
        await caller.until("output_audio_buffer.stopped")
    assert heard["transcript"] == "a latte please"
    loud = [at_s for at_s, level in caller.heard if level > LOUD and at_s > said_s]
    assert 0.2 < 0.02 * len(loud) < 3.0  # about as much as the agent said
    assert loud[0] - said_s < 1.5  # the client's own buffer of 80 ms, and what else this runs
    assert not caller.of("response.output_audio.delta")


async def test_a_caller_who_barges_in_silences_the_agent_and_is_told_what_was_heard() -> None:
    backends = instant_backends(
        recognizer=FakeRecognizer(["tell me a story", "something else now"], ms_per_word=200),
        language_model=FakeLanguageModel([LONG, "Sure."]),
    )
    async with served(backends) as (_, url), calling(url) as caller:
        await caller.until("session.created")
        await caller.say(700)
        await caller.until("output_audio_buffer.started")
        await asyncio.sleep(0.5)
        await caller.say(900)
        cut = await caller.until("conversation.item.truncated")
        cleared_s = caller.at("output_audio_buffer.cleared")
        await caller.until("response.done", count=2)
    first = caller.of("response.created")[0]["response"]["id"]
    assert caller.of("output_audio_buffer.cleared")[0]["response_id"] == first
    started_s = caller.at("output_audio_buffer.started")
    # Never beyond what was sent.
    assert 0 < cut["audio_end_ms"] < 1000 * (cleared_s - started_s) + LEAD_MS


async def test_a_tool_of_the_clients_is_called_and_answered() -> None:
    call = ToolCall("call_1", "order", '{"what": "latte"}')
    model = FakeLanguageModel([Reply("", (call,)), "It is on its way."])
    async with served(instant_backends(language_model=model)) as (_, url), calling(url) as caller:
        tool = {"type": "function", "name": "order", "parameters": {"type": "object"}}
        caller.send_when_open("session.update", session={"tools": [tool]})
        caller.send_when_open("conversation.item.create", item=text_item("a latte"))
        caller.send_when_open("response.create")
        (asked,) = (await caller.until("response.done"))["response"]["output"]
        output = {"type": "function_call_output", "call_id": asked["call_id"], "output": "ok"}
        caller.send("conversation.item.create", item=output)
        caller.send("response.create")
        await caller.until("output_audio_buffer.stopped")
    assert "on its way" in caller.said()


async def test_beside_a_call_everything_is_read_and_a_tool_is_answered() -> None:
    call = ToolCall("call_1", "order", '{"what": "latte"}')
    model = FakeLanguageModel([Reply("", (call,)), "It is on its way."])
    config = Config(keys=KEYS)
    async with served(instant_backends(language_model=model), config) as (gateway, url):
        secret = gateway.keys.issue(KEYS[0], 60, {}, lock=LOCKABLE).value
        async with calling(url, headers=bearer(secret)) as caller:
            await caller.until("session.created")
            address = f"{url.replace('http', 'ws')}/v1/realtime?call_id={caller.call_id}"
            for foreign in (None, bearer(KEYS[1])):
                with pytest.raises(InvalidStatus) as denied:
                    await connect(address, additional_headers=foreign, proxy=None)
                assert denied.value.response.status_code == (404 if foreign else 401)
            async with connect(address, additional_headers=bearer(KEYS[0]), proxy=None) as side:
                created = json.loads(await side.recv())
                assert created["type"] == "session.created"
                assert created["session"] == caller.of("session.created")[0]["session"]
                tool = {"type": "function", "name": "order", "parameters": {"type": "object"}}
                for event in (
                    {"type": "session.update", "session": {"tools": [tool]}},
                    {"type": "conversation.item.create", "item": text_item("a latte")},
                    {"type": "response.create"},
                ):
                    await side.send(json.dumps(event))
                caller.send("session.update", session={"tools": []})  # which the page may not
                refused = await caller.until("error")
                assert refused["error"]["param"] == "session.tools"
                while (done := json.loads(await side.recv()))["type"] != "response.done":
                    pass
                (asked,) = done["response"]["output"]
                output = {"type": "function_call_output", "call_id": asked["call_id"]}
                item = {**output, "output": "ok"}
                for _ in range(2):  # the page has answered it too
                    await side.send(json.dumps({"type": "conversation.item.create", "item": item}))
                await side.send(json.dumps({"type": "response.create"}))
                refused_twice = await caller.until("error", count=2)
                assert refused_twice["error"]["code"] == "call_answered_already"
                await caller.until("output_audio_buffer.stopped")
                hung_up = await post(f"{url}{CALLS}/{caller.call_id}/hangup", bearer(KEYS[0]))
                assert hung_up.status_code == 200
                with pytest.raises(ConnectionClosedOK):
                    while True:
                        await side.recv()
            await asyncio.wait_for(caller.closed.wait(), 5)
    assert "on its way" in caller.said()


async def test_of_two_gateways_at_one_port_the_wrong_one_sends_a_verb_on_its_way() -> None:
    async with served() as (own, url), served() as (other, elsewhere):
        own.doors.calls.is_shared = other.doors.calls.is_shared = True
        async with calling(url) as caller:
            await caller.until("session.created")
            refused = await post(f"{elsewhere}{CALLS}/{caller.call_id}/hangup", {})
            assert refused.status_code == 421
            assert refused.json()["error"]["code"] == "call_at_another_server"
            assert (await post(f"{url}{CALLS}/{caller.call_id}/hangup", {})).status_code == 200
            await asyncio.wait_for(caller.closed.wait(), 5)
        gone = await post(f"{url}{CALLS}/{caller.call_id}/hangup", {})
        assert gone.status_code == 404


async def test_a_page_without_a_channel_is_served_from_beside() -> None:
    async with served() as (_, url), calling(url, has_channel=False) as caller:
        address = f"{url.replace('http', 'ws')}/v1/realtime?call_id={caller.call_id}"
        async with connect(address, proxy=None) as side:
            assert json.loads(await side.recv())["type"] == "session.created"
            item = {"type": "conversation.item.create", "item": text_item("hello")}
            for event in (item, {"type": "response.create"}):
                await side.send(json.dumps(event))
            while json.loads(await side.recv())["type"] != "output_audio_buffer.stopped":
                pass
    assert any(level > LOUD for _, level in caller.heard)


@pytest.mark.parametrize("breach", ["no text", "many channels", "no end"])
async def test_a_peer_that_breaks_the_rules_ends_its_own_call_alone(
    breach: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with served() as (gateway, url), calling(url) as caller, calling(url) as neighbour:
        await caller.until("session.created")
        await neighbour.until("session.created")
        sctp = caller.peer.sctp
        match breach:
            case "no text":
                await sctp._send(caller.channel.id, 51, b"\xff\xfe")
            case "many channels":
                for number in range(2 * MAX_STREAMS):
                    caller.peer.createDataChannel(f"other {number}")
            case "no end":
                sctp._remote_max_message_size = 0
                caller.channel.send("x" * 3_000_000)
        await until(lambda: gateway.n_sessions == 1)
        neighbour.send("response.create", response={"output_modalities": ["text"]})
        await neighbour.until("response.done")
    assert not [one for one in caplog.records if one.levelname in ("WARNING", "ERROR")]


@pytest.mark.parametrize("form", ["json", "multipart"])
async def test_the_offer_may_come_with_a_session(form: str) -> None:
    session = {"type": "realtime", "instructions": "Be brief.", "audio": {"input": TRANSCRIBED}}
    async with served() as (_, url), calling(url, form=form, session=session) as caller:
        created = await caller.until("session.created")
    assert created["session"]["instructions"] == "Be brief."
    assert created["session"]["audio"]["input"]["transcription"]


async def test_what_is_wrong_with_an_offer_is_said_and_takes_no_place() -> None:
    config = Config(keys=KEYS, limits=Limits(max_sessions=1))
    async with served(config=config) as (gateway, url):
        key = bearer(KEYS[0])
        for headers, body, status, code in (
            ({}, b"v=0", 401, "invalid_api_key"),
            ({**key, "origin": "https://evil.example"}, b"v=0", 403, "origin_not_allowed"),
            (key, b"<html>", 400, "invalid_offer"),
            (key, b"v=0" + b" " * 600_000, 413, "frame_too_large"),
        ):
            sent = {"content-type": "application/sdp", **headers}
            answer = await post(f"{url}{CALLS}", sent, content=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        caller = WebRtcCaller()
        try:
            session = {"audio": {"output": {"voice": 7}}}
            answer = await caller.dial(url, headers=key, form="json", session=session)
            assert answer.status_code == 400
        finally:
            await caller.hang_up()
        unknown = await post(f"{url}{CALLS}/rtc_unknown/hangup", key)
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "call_id_not_found")
        assert gateway.admission.n_inside == 0 == len(gateway.doors.calls)


async def test_a_page_of_a_listed_origin_may_ask_and_read_the_answer() -> None:
    origin = "https://shop.example"
    config = Config(keys=KEYS, allowed_origins=(origin,))
    async with served(config=config) as (_, url):
        async with httpx.AsyncClient(trust_env=False) as http:
            asked = await http.options(f"{url}{CALLS}", headers={"origin": origin})
        assert asked.status_code == 204
        assert "x-openai-agents-sdk" in asked.headers["access-control-allow-headers"]
        async with calling(url, headers={**bearer(KEYS[0]), "origin": origin}) as caller:
            await caller.until("session.created")
            assert caller.answer_headers["access-control-allow-origin"] == origin
            assert caller.answer_headers["access-control-expose-headers"] == "Location"


async def test_whoever_is_not_there_in_time_gives_place_and_quota_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "CONNECT_S", 0.2)
    config = Config(keys=KEYS, quota=KeyQuota(calls=1))
    async with served(config=config) as (gateway, url):
        for _ in range(2):
            caller = WebRtcCaller()
            try:
                answer = await caller.dial(url, headers=bearer(KEYS[0]), follows=False)
                assert answer.status_code == 201
                second = await post(
                    f"{url}{CALLS}",
                    {**bearer(KEYS[0]), "content-type": "application/sdp"},
                    content=caller.offer,
                )
                assert second.status_code == 429
            finally:
                await caller.hang_up()
            await until(lambda: not gateway.admission.n_inside)


async def test_a_key_that_is_removed_while_its_peer_connects_opens_no_call() -> None:
    async with served(config=Config(keys=KEYS)) as (gateway, url):
        caller = WebRtcCaller()
        try:
            answer = await caller.dial(url, headers=bearer(KEYS[0]), follows=False)
            gateway.revoke(gateway.keys.take(KEYS[1:]))
            await caller.peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
            error = (await caller.until("error"))["error"]
            await asyncio.wait_for(caller.closed.wait(), 5)
        finally:
            await caller.hang_up()
        await until(lambda: not gateway.admission.n_inside)
    assert error["code"] == "invalid_api_key" and "removed" in error["message"]


async def test_a_peer_that_never_comes_gives_way_to_another_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door, "GIVES_WAY_S", 0.1)
    config = Config(limits=Limits(max_sessions=1))
    async with served(config=config) as (gateway, url):
        absent = WebRtcCaller()
        try:
            assert (await absent.dial(url, follows=False)).status_code == 201
            await asyncio.sleep(0.2)
            async with calling(url) as caller:
                await caller.until("session.created")
        finally:
            await absent.hang_up()
        await until(lambda: not gateway.admission.n_inside)


async def test_a_call_that_broke_off_goes_on_in_another() -> None:
    model = FakeLanguageModel(lambda m: f"You said {len(m)}.")
    async with served(instant_backends(language_model=model)) as (_, url):
        async with calling(url, query="?voiceloop.resume=1") as caller:
            await caller.until("session.created")
            caller.send("conversation.item.create", item=text_item("I am Ada"))
            caller.send("response.create", response={"output_modalities": ["text"]})
            await caller.until("response.done")
            ticket = await caller.until("voiceloop.resume_ticket", count=2)
        query = f"?voiceloop.resume=1&voiceloop.returns={ticket['returns']}"
        async with calling(url, query=query) as again:
            again.send_when_open("voiceloop.resume", ticket=ticket["ticket"])
            resumed = await again.until("voiceloop.resumed")
    assert resumed["items"] == 2


async def test_twenty_calls_one_after_the_other_leave_nothing() -> None:
    async with served() as (gateway, url):
        async with calling(url) as caller:  # what is made once
            await caller.until("session.created")
        await until(lambda: not gateway.admission.n_inside)
        before = resources()
        for _ in range(20):
            async with calling(url) as caller:
                await caller.until("session.created")
        await until(lambda: not gateway.admission.n_inside)
        await until(lambda: resources() <= before)
        port = gateway.doors._webrtc._mux
        assert port is not None and not port._by_ufrag and not port._by_address
        assert not gateway.n_sessions and not len(gateway.doors.calls)
        kinds = (Peer, IceLine, Line, SoundTransport, Session)
        # By type: `isinstance` asks a proxy of torch for its class, which warns.
        await until(lambda: not [one for one in gc.get_objects() if type(one) in kinds])


async def test_a_call_whose_time_is_over_is_told_so_first() -> None:
    async with served() as (gateway, url):
        secret = gateway.keys.issue(None, 60, {}, max_session_s=1).value
        async with calling(url, headers=bearer(secret)) as caller:
            told = await caller.until("error")
            await asyncio.wait_for(caller.closed.wait(), 5)
    assert told["error"]["code"] == "session_expired"


async def test_a_server_that_stops_lets_the_call_end() -> None:
    async with served() as (gateway, url), calling(url) as caller:
        await caller.until("session.created")
        await asyncio.wait_for(gateway.drain(), 5)
        await asyncio.wait_for(caller.closed.wait(), 5)


async def test_without_its_packages_the_door_says_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "voiceloop.doors.webrtc.peer", None)
    async with served() as (_, url):
        caller = WebRtcCaller()
        try:
            answer = await caller.dial(url)
        finally:
            await caller.hang_up()
    assert answer.status_code == 501
    error = answer.json()["error"]
    assert error["code"] == "missing_extra" and "voiceloop[webrtc]" in error["message"]


async def test_a_machine_that_tells_no_address_is_an_error_of_the_servers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forbidden(use_ipv4: bool, use_ipv6: bool) -> list[str]:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(mux, "get_host_addresses", forbidden)
    async with served(config=Config(host="0.0.0.0")) as (gateway, url):
        caller = WebRtcCaller()
        try:
            answer = await caller.dial(url)
        finally:
            await caller.hang_up()
        assert answer.status_code == 500 and not gateway.admission.n_inside
    (logged,) = [one for one in caplog.records if one.levelname == "ERROR"]
    assert "webrtc.address" in logged.getMessage()


async def test_turn_credentials_hold_for_a_while() -> None:
    webrtc = WebRtcSettings(ice_servers={"turn:turn.example:3478": "north"})
    async with served(config=Config(webrtc=webrtc)) as (_, url):
        async with httpx.AsyncClient(trust_env=False) as http:
            told = (await http.get(f"{url}/v1/realtime/ice-servers")).json()
    (server,) = told["ice_servers"]
    assert server["urls"] == ["turn:turn.example:3478"]
    expires_at = int(server["username"].partition(":")[0])
    assert expires_at > time.time() + 3000
    assert server == {"urls": server["urls"], **turn_credentials("north", expires_at)}
    # printf 1:voiceloop | openssl dgst -sha1 -hmac north -binary | base64
    assert turn_credentials("north", 1)["credential"] == "Ta9VOAZQ2S03AmFgzlR3eVcpXoo="
