"""Whole calls of a telephone at a scripted carrier: transferred, brought back, and hung up on."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from xml.etree import ElementTree

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.phone.telephone import Telephone
from tests.fakes import FakeLanguageModel, FakeRecognizer, Reply, instant_backends, utterance
from tests.phone_server import phone_served
from tests.tool_service import ANY, Service, box
from tests.voiceloop.doors.carriers.test_phone_call import Beside, dial, greeted, heard_of
from tests.voiceloop.doors.test_desk import Taken, asking
from tests.waiting import until
from voiceloop.agent import AgentConfig, AgentTool
from voiceloop.backends import Backends, ChatMessage, ToolCall
from voiceloop.call_manners import CallManners, Transfer

pytestmark = pytest.mark.virtual_time

RATE_HZ = 24_000
DESK = Transfer("desk", "tel:+493055", warm=True)
AGENT = AgentConfig(instructions="Be kind.", greeting="Good day.", transfers=(DESK,))


def calling(name: str, arguments: str) -> Backends:
    """A model that makes this call at the first thing it hears."""

    def reply(messages: tuple[ChatMessage, ...]) -> Reply:
        if messages[-1].role == "user":
            return Reply("One moment.", (ToolCall("c1", name, arguments),))
        return Reply("Done.")

    recognizer = FakeRecognizer(["i want a person please"], ms_per_word=100)
    return instant_backends(recognizer=recognizer, language_model=FakeLanguageModel(reply))


async def speaks(phone: Telephone) -> None:
    """Whoever calls says a sentence, and then nothing, as long as the line is there."""
    with suppress(ConnectionClosed):
        await phone.speak(utterance(700, RATE_HZ))
        await phone.speak(utterance(900, RATE_HZ) // 2000)


async def test_a_warm_transfer_tells_the_summary_and_brings_back_who_was_not_taken() -> None:
    told = json.dumps({"to": "desk", "summary": "Wants a refund."})
    async with phone_served(calling("transfer", told), agent=AGENT) as (gateway, url):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        await speaks(phone)
        await asyncio.wait_for(phone.ended.wait(), 20)
        await until(lambda: not gateway.n_sessions)
        dialled = await phone.post("/after", CallStatus="in-progress")
        number = ElementTree.fromstring(dialled.text).find(".//Number")
        assert number is not None and number.text == "+493055"
        whisper = number.get("url", "").partition("/v1/phone/twilio")[2]
        assert "Wants a refund." in (await phone.post(whisper, CallSid="CA2")).text
        back = await phone.post("/after", CallStatus="in-progress", DialCallStatus="no-answer")
        again = Telephone(url, phone.peer)
        await again.open(*phone.peer.stream_of(back.text))
        await until(lambda: heard_of(gateway))
        (call_id,) = gateway.doors.calls._calls
        async with connect(f"ws{url[4:]}/v1/realtime?call_id={call_id}") as socket:
            beside = Beside(socket)
            done = await beside.until("response.done")
        said = done["response"]["output"][0]["content"][0]["transcript"]
        assert said == CallManners().not_transferred
        await phone.close()
        await again.close()


async def test_the_agent_hangs_up_once_its_goodbye_was_heard() -> None:
    agent = AgentConfig(greeting="Good day.", call=CallManners(tools=("end_call",)))
    async with phone_served(calling("end_call", "{}"), agent=agent) as (gateway, _):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        n_before = len(phone.loud_at())
        await speaks(phone)
        await asyncio.wait_for(phone.ended.wait(), 20)
        assert len(phone.loud_at()) > n_before
        over = await phone.post("/after", CallStatus="in-progress")
        assert "<Hangup" in over.text
        await phone.close()


async def test_a_caller_who_hangs_up_while_it_rings_or_greets_leaves_nothing() -> None:
    taken = Taken()
    async with asking(taken) as (gateway, http):
        ringing = await dial(gateway, "twilio")
        await until(lambda: taken.requests)
        await ringing.hang_up()
        call_id = taken.event["data"]["call_id"]
        assert (await http.post(f"{call_id}/accept", json={})).status_code == 200
        await until(lambda: not gateway.n_sessions and not gateway.doors.calls._calls)
        assert gateway.doors.calls.desk.find(call_id, "") is None
    async with phone_served() as (gateway, _):
        greeting = await dial(gateway, "twilio")
        await until(greeting.loud_at)
        await greeting.hang_up()
        await until(lambda: not gateway.n_sessions and not heard_of(gateway))


async def test_what_a_tool_does_is_done_though_its_caller_hangs_up() -> None:
    order = AgentTool("order", "", ANY, url="https://shop.test/")
    service = Service(takes_s=1.0)
    agent = replace(AGENT, tools=(order,), transfers=())
    async with phone_served(calling("order", "{}"), agent=agent) as (gateway, _):
        clock = asyncio.get_running_loop().time
        gateway.calls.toolbox = box(clock, order=(order, service))
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        await speaks(phone)
        await until(lambda: service.n_begun)
        await phone.hang_up()
        await until(lambda: not gateway.n_sessions)
        await gateway.calls.toolbox.close()
        assert service.n_done == 1


async def test_a_stranger_cannot_decide_about_a_call() -> None:
    taken = Taken()
    async with asking(taken) as (gateway, http):
        phone = await dial(gateway, "twilio")
        await until(lambda: taken.requests)
        answer: httpx.Response = await http.post("rtc_unknown/accept", json={})
        assert answer.json()["error"]["code"] == "call_id_not_found"
        await http.post(f"{taken.event['data']['call_id']}/reject")
        await phone.ended.wait()
        await phone.close()
