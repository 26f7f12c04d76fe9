"""What is decided about a telephone's call before it is answered, and its verbs over HTTP."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from benchmarks.phone.peers import CALLED, CALLER
from benchmarks.phone.telephone import Telephone
from tests.phone_server import PHONE, phone_served
from tests.voiceloop.doors.carriers.test_phone_call import dial, greeted, heard_of
from tests.waiting import until
from voiceloop.doors.webhook import Webhook
from voiceloop.errors import BackendError
from voiceloop.phone_settings import PhoneNumber, PhoneSettings
from voiceloop.server.app import Gateway

pytestmark = pytest.mark.virtual_time

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
ASK = replace(
    PHONE, webhook_url="https://shop.test/calls", secrets={**PHONE.secrets, "webhook": SECRET}
)


class Taken:
    """Who is asked about calls: keeps what it is told, and answers as it is set."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.requests: list[httpx.Request] = []

    def webhook(self) -> Webhook:
        def answer(request: httpx.Request) -> httpx.Response:
            self.requests.append(request)
            return httpx.Response(self.status, headers={"Location": "http://10.0.0.1/"})

        return Webhook(ASK.webhook_url, SECRET, httpx.MockTransport(answer))

    @property
    def event(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.requests[-1].content)
        return told


@asynccontextmanager
async def asking(
    taken: Taken, phone: PhoneSettings = ASK
) -> AsyncIterator[tuple[Gateway, httpx.AsyncClient]]:
    async with phone_served(phone=phone) as (gateway, url):
        gateway.doors.calls.desk._webhook = taken.webhook()
        calls = f"{url}/v1/realtime/calls/"
        async with httpx.AsyncClient(base_url=calls, trust_env=False) as http:
            yield gateway, http


async def over(phone: Telephone) -> None:
    """Wait until the server has ended the stream."""
    await phone.ended.wait()
    await phone.close()


async def test_a_call_rings_until_it_is_accepted_with_a_session_of_its_own() -> None:
    taken = Taken()
    async with asking(taken) as (gateway, http):
        phone = await dial(gateway, "twilio")
        await until(lambda: taken.requests)
        assert not heard_of(gateway)  # no session, no model so far
        event = taken.event
        assert event["type"] == "realtime.call.incoming"
        headers = {one["name"]: one["value"] for one in event["data"]["sip_headers"]}
        assert (headers["From"], headers["To"]) == (CALLER, CALLED)
        call_id = event["data"]["call_id"]
        session = {"type": "realtime", "instructions": "Greet {caller.number}."}
        assert (await http.post(f"{call_id}/accept", json={"instructions": 7})).status_code == 400
        assert (await http.post("rtc_0/accept", json=session)).status_code == 404
        assert (await http.post(f"{call_id}/accept", json=session)).status_code == 200
        await greeted(phone)
        (hello,) = heard_of(gateway)
        assert hello.asked["instructions"] == f"Greet {CALLER}."
        again = await http.post(f"{call_id}/accept", json=session)
        assert again.json()["error"]["code"] == "call_decided"
        refused = await http.post(f"{call_id}/refer", json={"target_uri": "tel:+1900555"})
        assert refused.json()["error"]["param"] == "target_uri"
        assert (await http.post(f"{call_id}/hangup")).status_code == 200
        await over(phone)


@pytest.mark.parametrize("is_asked", [True, False])
async def test_a_call_is_rejected_or_nobody_could_be_asked(is_asked: bool) -> None:
    taken = Taken(200 if is_asked else 302)
    async with asking(taken) as (gateway, http):
        phone = await dial(gateway, "twilio")
        await until(lambda: taken.requests)
        if is_asked:
            call_id = taken.event["data"]["call_id"]
            told = await http.post(f"{call_id}/reject", json={"status_code": 486})
            assert told.status_code == 200
        await over(phone)
        assert not heard_of(gateway) and gateway.doors.calls.desk._ringing == {}
        assert not phone.loud_at()


async def test_a_call_is_referred_where_the_pattern_allows() -> None:
    settings = replace(PHONE, transfer_to=("tel:+4930*",))
    async with phone_served(phone=settings) as (gateway, url):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        (call_id,) = gateway.doors.calls._calls
        calls = f"{url}/v1/realtime/calls/{call_id}"
        async with httpx.AsyncClient(trust_env=False) as http:
            for evil in ("tel:+4930>\r\nX-Evil: 1", "tel:+4930 <sip:a>"):
                refused = await http.post(f"{calls}/refer", json={"target_uri": evil})
                assert refused.json()["error"]["param"] == "target_uri"
            answer = await http.post(f"{calls}/refer", json={"target_uri": "tel:+493055"})
        assert answer.status_code == 200
        await over(phone)
        after = await phone.post("/after", CallStatus="in-progress")
        assert "<Dial" in after.text and "+493055" in after.text


async def test_a_number_has_its_own_session() -> None:
    session = {"instructions": "You sell to {caller.number}."}
    number = PhoneNumber(CALLED, session=session)
    async with phone_served(phone=replace(PHONE, number=(number,))) as (gateway, _):
        phone = await dial(gateway, "twilio")
        await greeted(phone)
        (hello,) = heard_of(gateway)
        assert hello.session["instructions"] == f"You sell to {CALLER}."
        await phone.close()


async def test_one_call_too_many_to_a_number_reaches_no_session() -> None:
    async with phone_served(phone=replace(PHONE, max_calls=1)) as (gateway, url):
        first = await dial(gateway, "twilio")
        await greeted(first)
        second = Telephone.of(url, "plivo")
        await second.dial()
        await over(second)
        assert len(heard_of(gateway)) == 1 and not first.ended.is_set()
        await first.close()


async def test_the_webhook_is_signed_as_standard_webhooks_have_it() -> None:
    taken = Taken()
    await taken.webhook().tell({"id": "evt_1", "type": "t"}, 1_700_000_000)
    (request,) = taken.requests
    told = b"evt_1.1700000000." + request.content
    mac = hmac.new(b"0123456789abcdef", told, hashlib.sha256).digest()
    assert request.headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
    assert request.headers["webhook-timestamp"] == "1700000000"


async def test_a_redirect_is_followed_nowhere() -> None:
    taken = Taken(302)
    with pytest.raises(BackendError, match="status 302"):
        await taken.webhook().tell({"id": "evt_1"}, 1)
    assert {str(request.url) for request in taken.requests} == {ASK.webhook_url}
