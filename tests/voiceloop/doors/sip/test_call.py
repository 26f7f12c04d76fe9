"""Calls by SIP on real sockets of this machine, by a telephone that writes its messages by hand."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest

from clients.server_process import free_port
from tests.fakes import FakeRecognizer, instant_backends, utterance
from tests.serving import served
from tests.sip_phone import PCMU, SDP, Message, Telephone
from tests.voiceloop.doors.webrtc.test_call import post
from tests.waiting import until
from voiceloop.agent import AgentConfig
from voiceloop.backends import Backends
from voiceloop.call.connection import Hello
from voiceloop.config import Config, Limits
from voiceloop.doors.keypad import tones
from voiceloop.doors.line import Line
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.sip import door as door_module
from voiceloop.doors.sip import media as media_module
from voiceloop.doors.sip.door import SipDoor, listening_host
from voiceloop.doors.sip.endpoint import Flow
from voiceloop.doors.sip.leg import Leg, LegState
from voiceloop.errors import InvalidRequest, NotAnswered, NotOnThisLine, TransferFailed
from voiceloop.phone_settings import PhoneSettings
from voiceloop.sip_settings import SipSettings, TrunkSettings
from voiceloop.telephony import Announcement, PhoneCall

pytestmark = pytest.mark.virtual_time

HERE = ("127.0.0.1",)
LONG = "Once upon a time there was a cafe that had everything, and everybody came to eat there."


URL: list[str] = []  # of the gateway that serves


@asynccontextmanager
async def dialled(
    backends: Backends | None = None,
    limits: Limits | None = None,
    agent: AgentConfig | None = None,
    **sip: Any,
) -> AsyncIterator[tuple[SipDoor, Telephone]]:
    """A gateway with a SIP port, and a telephone beside it."""
    given = {"port": free_port(), "allow": HERE, **sip}
    config = Config(
        sip=SipSettings(**given),
        phone=PhoneSettings(headers=("X-Order",)),
        limits=limits or Limits(),
    )
    agent = agent or AgentConfig(instructions="Be kind.")
    async with served(backends, config, agent=agent) as (gateway, url):
        URL[:] = [url]
        await gateway.doors.open()
        door = gateway.doors.telephones.sip
        assert door is not None
        phone = await Telephone(door.port).open()
        try:
            yield door, phone
        finally:
            phone.close()


def n_legs(door: SipDoor) -> int:
    """Calls that have not ended."""
    return sum(leg.state is not LegState.ENDED for leg in set(door._legs.values()))


def steps(counted: list[int], wraps_at: int) -> list[int]:
    """From each to the next."""
    pairs = zip(counted, counted[1:], strict=False)
    return [(after - before) % wraps_at for before, after in pairs]


def leg_of(door: SipDoor) -> Leg:
    (leg,) = set(door._legs.values())
    return leg


def line_of(door: SipDoor) -> Line:
    (line,) = door._calls._calls.values()
    return line


async def test_a_spoken_turn_is_heard_and_answered_and_a_bye_ends_the_call() -> None:
    backends = instant_backends(recognizer=FakeRecognizer(["a latte please"]))
    async with dialled(backends) as (door, phone):
        answer = await phone.call(
            PCMU, "X-Order: 17", "X-Secret: no", "P-Asserted-Identity: <sip:+49%2040@x>"
        )
        assert answer.status == 200
        await phone.say(utterance(700, 24_000))
        said_s = asyncio.get_running_loop().time()
        await phone.be_quiet(1.5)
        assert phone.loud_s()[0] - said_s < 1.0
        told = line_of(door).hello.phone
        assert told is not None
        assert (told.door, told.caller, told.called) == ("sip", "+4940", "+4930123")
        assert told.headers == {"X-Order": "17"}
        assert (await phone.ask("BYE")).status == 200
        await until(lambda: not n_legs(door) and not len(door._calls))


async def test_the_agent_greets_and_its_silence_goes_on_in_packets() -> None:
    async with dialled() as (_, phone):
        await phone.call()
        await until(lambda: len(phone.heard) > 30)
        stamps = [packet.timestamp for _, packet in phone.heard]
        counted = steps(stamps, 2**32)
        assert counted.count(160) > 0.8 * len(counted)  # a machine that hesitates leaves some out


async def test_a_far_end_that_knows_comfort_noise_is_told_of_silence_now_and_then() -> None:
    async with dialled() as (_, phone):
        await phone.call("0 13 101")
        await phone.be_quiet(1.0)
        kinds = [packet.payload_type for _, packet in phone.heard]
        assert set(kinds) == {13}
        assert 1 <= len(kinds) <= 4


async def test_keys_are_pressed_once_by_events_and_by_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pressed: list[str] = []
    monkeypatch.setattr(Line, "press", lambda line, key: pressed.append(key))
    async with dialled() as (_, phone):
        await phone.call()
        phone.press(5)
        phone.press(11)
        await until(lambda: pressed == ["5", "#"])
        body = "Signal=7\r\nDuration=100\r\n"
        told = await phone.ask("INFO", body, "Content-Type: application/dtmf-relay")
        assert told.status == 200
        assert pressed == ["5", "#"]  # this telephone has sent events: the message says it again
    async with dialled() as (_, phone):
        await phone.call("0")
        await phone.ask("INFO", body, "Content-Type: application/dtmf-relay")
        assert pressed == ["5", "#", "7"]
        refused = await phone.ask("INFO", "x", "Content-Type: text/plain")
        assert refused.status == 415


async def test_keys_in_the_sound_are_heard_where_the_far_end_has_no_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pressed: list[str] = []
    monkeypatch.setattr(Line, "press", lambda line, key: pressed.append(key))
    async with dialled() as (_, phone):
        await phone.call("0")
        await phone.say(np.frombuffer(tones("42"), "<i2"))
        await until(lambda: pressed == ["4", "2"])


async def test_keys_of_the_agent_go_out_as_events() -> None:
    async with dialled() as (door, phone):
        await phone.call()
        await until(lambda: len(door._calls) == 1)
        await leg_of(door).send_digits("1w#")
        await until(lambda: len([1 for _, one in phone.heard if one.payload_type == 101]) == 14)
        events = [one for _, one in phone.heard if one.payload_type == 101]
        assert [one.payload[0] for one in events] == [1] * 7 + [11] * 7
        assert sum(one.payload[1] >> 7 for one in events) == 6
        sequence = [one.sequence for _, one in phone.heard]
        assert set(steps(sequence, 2**16)) == {1}
        with pytest.raises(InvalidRequest, match="digits"):
            await leg_of(door).send_digits("1x")


async def test_an_invite_without_a_description_is_offered_ours() -> None:
    async with dialled() as (door, phone):
        offered = await phone.ask("INVITE")
        assert offered.status == 200
        assert "PCMA/8000" in offered.body and "G722/8000" in offered.body
        phone.acknowledge(offered, phone.sdp())
        phone.sound_to = ("127.0.0.1", offered.sound_port)
        await phone.be_quiet(0.3)
        await until(lambda: len(phone.heard) > 5)
        assert {packet.payload_type for _, packet in phone.heard} == {0}


async def test_hold_sends_nothing_keeps_the_call_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media_module, "LOST_S", 0.4)
    heard: list[bytes] = []
    monkeypatch.setattr(Line, "hear", lambda line, samples: heard.append(samples))
    async with dialled() as (door, phone):
        await phone.call()
        await phone.say(utterance(200, 24_000))
        answer = await phone.ask("INVITE", phone.sdp(direction="sendonly"))
        phone.acknowledge(answer)
        assert "a=recvonly" in answer.body
        await asyncio.sleep(0.1)
        phone.heard.clear()
        heard.clear()
        await phone.say(utterance(300, 24_000))  # the exchange's music
        assert phone.heard == []
        assert heard and not any(np.frombuffer(b"".join(heard), "<i2"))
        await asyncio.sleep(0.6)
        assert n_legs(door) == 1
        phone.acknowledge(await phone.ask("INVITE", phone.sdp()))
        await phone.be_quiet(0.3)
        assert len(phone.heard) > 5


async def test_a_line_on_which_nothing_comes_any_more_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(media_module, "LOST_S", 0.3)
    async with dialled() as (door, phone):
        await phone.call()
        await phone.be_quiet(0.2)
        await phone.asked("BYE")
        await until(lambda: n_legs(door) == 0)


async def test_sound_goes_to_and_comes_from_those_who_signal_or_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[bytes] = []
    monkeypatch.setattr(Line, "hear", lambda line, samples: heard.append(samples))
    async with dialled() as (_, phone):
        inner = phone.sdp().replace("c=IN IP4 127.0.0.1", "c=IN IP4 10.1.2.3")
        answer = await phone.ask("INVITE", inner)  # as behind NAT
        phone.acknowledge(answer)
        phone.sound_to = ("127.0.0.1", answer.sound_port)
        await until(lambda: len(phone.heard) > 3)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.bind(("127.0.0.2", 0))
            stranger.sendto(RtpPacket(0, 1, 0, 9, payload=bytes(160)).serialize(), phone.sound_to)
        await asyncio.sleep(0.1)
        assert heard == []
        await phone.say(utterance(200, 24_000))
        assert heard


async def test_a_call_that_is_given_up_while_it_waits_is_terminated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = asyncio.Event()

    @asynccontextmanager
    async def slow(
        server: object, calls: object, hello: Hello, call_id: str
    ) -> AsyncIterator[Hello]:
        await waits.wait()
        yield hello

    monkeypatch.setattr(door_module, "admitted", slow)
    async with dialled() as (door, phone):
        invite = phone.request("INVITE", phone.sdp())
        phone.write(invite)
        assert (await phone.next()).status == 100
        phone.write(invite)  # repeated: absorbed
        cancel = phone.request("CANCEL", cseq=phone.cseq, branch=phone.branch)
        phone.write(cancel)
        answers = {(one := await phone.next()).method: one.status for _ in range(2)}
        assert answers == {"CANCEL": 200, "INVITE": 487}
        waits.set()
        await until(lambda: not door._tasks)
        assert n_legs(door) == 0


async def test_a_call_is_answered_within_three_rounds_of_the_loop() -> None:
    """However long the calls of a crowd take in each."""
    async with dialled() as (door, phone):
        sent: list[bytes] = []
        flow = Flow("UDP", "127.0.0.1", phone.at[1], sent.append)
        door._endpoint.receive(phone.request("INVITE", phone.sdp()).encode(), flow)
        for _ in range(3):
            await asyncio.sleep(0)
        assert [Message(one).status for one in sent] == [100, 180, 200]


async def test_a_cancel_that_comes_too_late_changes_nothing() -> None:
    async with dialled() as (door, phone):
        answer = await phone.ask("INVITE", phone.sdp())
        phone.write(phone.request("CANCEL", cseq=phone.cseq, branch=phone.branch))
        assert (await phone.final("CANCEL")).status == 200
        phone.acknowledge(answer)
        await until(lambda: len(door._calls) == 1)
        stranger = await Telephone(door.port).open()
        assert (await stranger.ask("CANCEL")).status == 481
        stranger.close()


async def test_an_answer_is_repeated_until_it_is_acknowledged_and_a_request_is_done_once() -> None:
    async with dialled() as (door, phone):
        invite = phone.request("INVITE", phone.sdp())
        phone.write(invite)
        first = await phone.final("INVITE")
        phone.write(invite)
        again = [await phone.final("INVITE") for _ in range(2)]  # to the repetition, and by itself
        assert {one.header("to") for one in again} == {first.header("to")}
        phone.acknowledge(first)
        await until(lambda: len(door._calls) == 1)
        bye = phone.request("BYE")
        phone.write(bye)
        phone.write(bye)
        assert [(await phone.final("BYE")).status for _ in range(2)] == [200, 200]


async def test_options_tells_whether_calls_are_taken() -> None:
    async with dialled(limits=Limits(max_sessions=1)) as (_, phone):
        told = await phone.ask("OPTIONS")
        assert told.status == 200
        assert "INVITE" in told.header("allow")
        await phone.call()
        phone.to_tag, phone.call_id = "", "another"
        full = await phone.ask("OPTIONS")
        assert full.status == 503
        assert full.header("retry-after")


@pytest.mark.parametrize(
    "body, more, status, header",
    [
        (SDP.replace("{types}", "18").replace("RTP/AVP", "RTP/AVP"), (), 488, "warning"),
        (SDP.replace("RTP/AVP", "RTP/SAVP"), (), 488, "warning"),
        (SDP, ("Require: 100rel",), 420, "unsupported"),
        (SDP, ("Session-Expires: 30",), 422, "min-se"),
        ("hello", ("Content-Type: text/plain",), 415, "accept"),
    ],
)
async def test_what_cannot_be_served_is_refused_by_its_own_number(
    body: str, more: tuple[str, ...], status: int, header: str
) -> None:
    async with dialled() as (door, phone):
        text = body.format(port=4000, types=PCMU, direction="sendrecv") if "{" in body else body
        answer = await phone.ask("INVITE", text, *more)
        assert answer.status == status
        assert answer.header(header)
        assert not door._tasks and not door._legs
        assert (await phone.ask("REGISTER")).status == 405
        phone.to_tag = "made-up"
        assert (await phone.ask("BYE")).status == 481


async def test_a_full_server_says_when_to_come_again() -> None:
    async with dialled(limits=Limits(max_sessions=1)) as (door, phone):
        await phone.call()
        second = await Telephone(door.port).open()
        answer = await second.call()
        assert answer.status == 503
        assert 0 < int(answer.header("retry-after")) < 120
        await until(lambda: n_legs(door) == 1)
        second.close()


def proof(
    asked: Message, algorithm: str, password: str, uri: str, method: str, nc: str = "00000001"
) -> str:
    challenge = next(one for one in asked.headers["www-authenticate"] if algorithm in one)
    nonce = re.search(r'nonce="([^"]+)"', challenge)
    assert nonce is not None
    made = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}[algorithm]

    def hashed(text: str) -> str:
        return made(text.encode()).hexdigest()

    secret, what = hashed(f"ann:voiceloop:{password}"), hashed(f"{method}:{uri}")
    response = hashed(f"{secret}:{nonce[1]}:{nc}:abc:auth:{what}")
    return (
        f'Authorization: Digest username="ann", realm="voiceloop", nonce="{nonce[1]}", '
        f'uri="{uri}", algorithm={algorithm}, qop=auth, nc={nc}, cnonce="abc", '
        f'response="{response}"'
    )


@pytest.mark.parametrize("algorithm", ["MD5", "SHA-256"])
async def test_who_is_not_among_the_addresses_proves_a_password(algorithm: str) -> None:
    async with dialled(allow=(), users=("ann:correct horse",)) as (door, phone):
        asked = await phone.call()
        assert asked.status == 401
        uri = f"sip:+4930123@127.0.0.1:{door.port}"
        wrong = await phone.call(PCMU, proof(asked, algorithm, "wrong horse", uri, "INVITE"))
        assert wrong.status == 401
        assert "stale" not in wrong.header("www-authenticate")
        assert not door._tasks
        elsewhere = uri.replace("+4930123", "+1900555")
        for given in (
            proof(asked, algorithm, "correct horse", elsewhere, "INVITE"),
            proof(asked, algorithm, "correct horse", uri, "INVITE", "1"),
        ):
            assert (await phone.call(PCMU, given)).status == 401
        right = proof(asked, algorithm, "correct horse", uri, "INVITE")
        assert (await phone.call(PCMU, right)).status == 200
        phone.call_id, phone.to_tag = "somebody-who-listened", ""
        again = await phone.call(PCMU, right)
        assert again.status == 401 and again.header("www-authenticate").endswith("stale=true")
        phone.call_id = "the-same-telephone"
        counted = proof(asked, algorithm, "correct horse", uri, "INVITE", "0000000A")
        assert (await phone.call(PCMU, counted)).status == 200


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "0.0.0.0"), ("::1", "::")])
async def test_a_named_address_is_listened_at_in_its_own_family(address: str, host: str) -> None:
    async with dialled(address=address) as (door, _):
        server = door._endpoint._server
        assert server is not None
        assert server.sockets[0].getsockname()[0] == host


def test_a_servers_own_host_is_left_for_no_other_unless_it_is_loopback() -> None:
    assert listening_host("10.0.0.5", "203.0.113.7") == "10.0.0.5"
    assert listening_host("127.0.0.1", "203.0.113.7") == "0.0.0.0"
    assert listening_host("127.0.0.1", "") == "127.0.0.1"


async def test_a_report_from_anybody_before_the_call_is_agreed_is_no_error() -> None:
    class Nobody:
        def hear(self, samples: bytes) -> None: ...
        def press(self, key: str, *, is_sound: bool) -> None: ...
        def end(self, code: int, how: str) -> None: ...

    media = media_module.Media(
        media_module.Ports("127.0.0.1"), Nobody(), "127.0.0.1", lambda host: True
    )
    media.open()
    try:
        media._receive(b"\x80" * 12, ("127.0.0.1", 9))
        media._receive_report(b"\x80" * 12, ("127.0.0.1", 9))
    finally:
        media.close()


async def test_a_stranger_is_refused_and_soon_not_even_that() -> None:
    async with dialled(allow=("10.9.8.7",)) as (door, phone):
        phone.write("hello\r\n\r\n")
        for _ in range(300):
            phone.write(phone.request("INVITE", phone.sdp()))
        assert (await phone.final("INVITE")).status == 403
        await asyncio.sleep(0.2)
        assert phone.messages.qsize() < 60
        assert not door._tasks and not door._legs and not door._endpoint._answered


async def test_a_flood_of_those_who_may_call_begins_few_calls() -> None:
    async with dialled(limits=Limits(max_sessions=2)) as (door, phone):
        statuses = []
        for number in range(400):
            phone.call_id, phone.to_tag = f"flood-{number}", ""
            message = await phone.ask("INVITE", phone.sdp())
            phone.acknowledge(message)
            statuses.append(message.status)
        assert set(statuses) == {200, 503}
        assert statuses.count(200) <= 6  # a slow machine ends those that send no sound
        assert n_legs(door) <= 2


async def test_the_agents_end_of_the_call_is_a_bye_with_its_headers() -> None:
    async with dialled() as (door, phone):
        await phone.call()
        await until(lambda: len(door._calls) == 1)
        line_of(door).last_headers = [("X-Outcome", "sold")]
        await leg_of(door).hang_up()
        bye = await phone.asked("BYE")
        assert bye.header("x-outcome") == "sold"
        await until(lambda: not len(door._calls))


async def test_a_transfer_that_is_taken_ends_the_call_and_one_that_fails_does_not() -> None:
    async with dialled() as (door, phone):
        await phone.call()
        await until(lambda: len(door._calls) == 1)
        leg = leg_of(door)
        moving = asyncio.create_task(leg.transfer("tel:+49301"))
        refer = await phone.asked("REFER", 202)
        assert refer.header("refer-to") == "<sip:+49301@127.0.0.1>"
        for status in ("100 Trying", "486 Busy Here"):
            body = f"SIP/2.0 {status}\r\n"
            told = await phone.ask("NOTIFY", body, "Event: refer", "Content-Type: message/sipfrag")
            assert told.status == 200
        with pytest.raises(TransferFailed, match="486"):
            await moving
        assert n_legs(door) == 1
        moving = asyncio.create_task(leg.transfer("sip:desk@127.0.0.1"))
        await phone.asked("REFER", 202)
        await phone.ask("NOTIFY", "SIP/2.0 200 OK\r\n", "Event: refer")
        await phone.asked("BYE")
        await moving
        await until(lambda: not len(door._calls))


@asynccontextmanager
async def handing_over(
    door: SipDoor, phone: Telephone
) -> AsyncIterator[tuple[asyncio.Task[None], Telephone, Message]]:
    """A warm transfer to a desk: its task, the desk, and the INVITE that it has got."""
    await phone.call()
    await until(lambda: len(door._calls) == 1)
    desk = await Telephone(door.port).open()
    told = Announcement("Wants a refund.", utterance(600, 24_000).tobytes())
    target = f"sip:desk@127.0.0.1:{desk.at[1]}"
    moving = asyncio.create_task(leg_of(door).transfer(target, told))
    invite = await desk.asked_for("INVITE")
    desk.call_id, desk.to_tag = invite.header("call-id"), invite.header("from").partition("tag=")[2]
    try:
        yield moving, desk, invite
    finally:
        desk.close()


async def test_a_warm_transfer_tells_who_answers_and_gives_its_place_to_the_caller() -> None:
    async with dialled() as (door, phone), handing_over(door, phone) as (moving, desk, invite):
        desk.answer(invite, 200, desk.sdp())
        refer = await phone.asked_for("REFER")
        assert 0.4 < desk.loud_s()[-1] - desk.loud_s()[0] < 0.8
        uri, _, replaced = refer.header("refer-to").strip("<>").partition("?Replaces=")
        assert uri == f"sip:phone@127.0.0.1:{desk.at[1]}"
        ours, theirs = desk.to_tag, desk.tag
        assert unquote(replaced) == f"{desk.call_id};to-tag={theirs};from-tag={ours}"
        phone.answer(refer, 202)
        await phone.ask("NOTIFY", "SIP/2.0 200 OK\r\n", "Event: refer")
        await phone.asked("BYE")
        await desk.asked("BYE")
        await moving
        await until(lambda: n_legs(door) == 0)


@pytest.mark.parametrize("how", ["busy", "hangs up while it is told", "the caller's end cannot"])
async def test_a_warm_transfer_that_fails_leaves_the_caller_here(how: str) -> None:
    async with dialled() as (door, phone), handing_over(door, phone) as (moving, desk, invite):
        if how == "busy":
            desk.answer(invite, 486)
        else:
            desk.answer(invite, 200, desk.sdp())
            await until(desk.loud_s)
        if how == "hangs up while it is told":
            await desk.ask("BYE")
        if how == "the caller's end cannot":
            await phone.asked("REFER", 420)
            await desk.asked("BYE")
            blind = await phone.asked("REFER", 501)
            assert "Replaces" not in blind.header("refer-to")
        with pytest.raises(TransferFailed):
            await moving
        assert n_legs(door) == 1
        with pytest.raises(NotOnThisLine):  # the caller's end may be able to, ours is not
            (leg,) = {leg for leg in door._legs.values() if leg.state is LegState.LIVE}
            await leg.transfer("sips:desk@pbx.test", Announcement("Wants a refund."))


async def test_the_trunks_password_is_proved_to_no_other_host() -> None:
    trunk = TrunkSettings("sip:shop@127.0.0.1:5070", "correct horse")
    async with dialled(trunk=trunk) as (door, phone):
        assert door._trunk is not None and (await door._trunk.flow()).host == "127.0.0.1"
        await phone.call()
        await until(lambda: len(door._calls) == 1)
        desk = await Telephone(door.port).open("127.0.0.2")
        target, told = f"sip:desk@127.0.0.2:{desk.at[1]}", Announcement("A refund.", b"")
        moving = asyncio.create_task(leg_of(door).transfer(target, told))
        invite = await desk.asked_for("INVITE")
        asked = 'WWW-Authenticate: Digest realm="shop", nonce="a"'
        desk.answer(invite, 401, "", asked)
        with pytest.raises(TransferFailed, match="401"):
            await moving
        desk.close()


async def test_who_moves_the_call_elsewhere_leaves_the_agent_with_the_new_far_end() -> None:
    async with dialled() as (door, phone):
        await phone.call()
        await until(lambda: len(door._calls) == 1)
        line = line_of(door)
        other = await Telephone(door.port).open()
        accepted = await phone.ask(
            "REFER", "", "Refer-To: <sip:desk@127.0.0.1?Replaces=a%3Bto-tag%3Db>"
        )
        assert accepted.status == 202
        assert "100" in (await phone.asked("NOTIFY")).body
        invite = await phone.asked_for("INVITE")
        assert invite.header("replaces") == "a;to-tag=b"
        other.call_id = invite.header("call-id")
        other.sound_to = ("127.0.0.1", invite.sound_port)
        phone.answer(invite, 200, other.sdp())
        assert "200" in (await phone.asked("NOTIFY")).body
        await phone.asked("BYE")
        await other.say(utterance(200, 24_000))
        await until(lambda: len(other.heard) > 5)
        assert line_of(door) is line
        other.close()


async def test_a_session_that_is_not_refreshed_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "LEAST_SESSION_S", 1)
    async with dialled() as (door, phone):
        answer = await phone.call(PCMU, "Session-Expires: 2", "Supported: timer")
        assert answer.header("session-expires") == "2;refresher=uac"
        refreshed = await phone.ask("UPDATE", "", "Session-Expires: 2;refresher=uac")
        assert refreshed.status == 200
        await phone.asked("BYE")
        await until(lambda: n_legs(door) == 0)


async def test_where_it_is_ours_to_refresh_we_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "LEAST_SESSION_S", 1)
    async with dialled() as (door, phone):
        await phone.call(PCMU, "Session-Expires: 1;refresher=uas", "Allow: UPDATE")
        for _ in range(2):
            assert (await phone.asked("UPDATE")).header("session-expires")
        gone = await phone.asked("UPDATE", 481)
        assert gone.header("cseq")
        await until(lambda: n_legs(door) == 0)


@asynccontextmanager
async def trunked() -> AsyncIterator[tuple[SipDoor, Telephone]]:
    """A gateway whose trunk is the telephone."""
    far = await Telephone(0).open()
    trunk = TrunkSettings(f"sip:shop@127.0.0.1:{far.at[1]}", "correct horse", ("tel:*",))
    async with dialled(trunk=trunk, allow=("10.9.8.7",)) as (door, phone):
        phone.close()
        far.server = ("127.0.0.1", door.port)
        yield door, far
        far.close()


HELLO = Hello(door="phone", greeting=True, phone=PhoneCall("sip", is_outbound=True))


async def test_a_call_that_goes_out_proves_its_password_and_is_answered() -> None:
    async with trunked() as (door, far):
        calling = asyncio.create_task(door.call(HELLO, "tel:+4940555"))
        first = await far.asked_for("INVITE")
        assert first.first.startswith("INVITE sip:+4940555@127.0.0.1")
        far.answer(first, 401, "", 'WWW-Authenticate: Digest realm="x", nonce="n", qop="auth"')
        invite = await far.asked_for("INVITE")
        assert 'username="shop"' in invite.header("authorization")
        far.answer(invite, 180)
        far.answer(invite, 200, far.sdp())
        assert (await far.asked_for("ACK")).header("to").endswith(f"tag={far.tag}")
        assert (await calling).startswith("rtc_")
        far.sound_to = ("127.0.0.1", invite.sound_port)
        await far.be_quiet(0.3)
        assert len(far.heard) > 5


async def test_a_call_goes_out_over_http_and_says_its_outcome_when_it_is_hung_up() -> None:
    async with trunked() as (_, far):
        where = f"{URL[0]}/v1/phone/calls"
        calling = asyncio.create_task(post(where, {}, json={"to": "tel:+4940555"}))
        far.answer(await far.asked_for("INVITE"), 200, far.sdp())
        answer = await calling
        assert answer.status_code == 201
        hangup = f"{URL[0]}{answer.headers['location']}/hangup"
        wrong = await post(hangup, {}, json={"headers": {"Via": "x"}})
        assert wrong.status_code == 400
        told = await post(hangup, {}, json={"headers": {"X-Outcome": "sold"}})
        assert told.status_code == 200
        assert (await far.asked("BYE")).header("x-outcome") == "sold"
        for to in ("sip:x@example.com", "+4940555", "tel:abc", 7):
            assert (await post(where, {}, json={"to": to})).status_code == 400
        busy = asyncio.create_task(post(where, {}, json={"to": "tel:+4940555"}))
        far.answer(await far.asked_for("INVITE"), 486)
        assert (await busy).json()["error"]["code"] == "not_answered"


@pytest.mark.parametrize("status", [486, 603])
async def test_a_call_that_nobody_takes_says_so(status: int) -> None:
    async with trunked() as (door, far):
        calling = asyncio.create_task(door.call(HELLO, "tel:+4940555"))
        invite = await far.asked_for("INVITE")
        far.answer(invite, status)
        await far.asked_for("ACK")
        with pytest.raises(NotAnswered, match=str(status)):
            await calling
        await until(lambda: not door._tasks)
        assert n_legs(door) == 0


async def test_a_call_that_rings_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("voiceloop.doors.sip.door.RING_S", 0.2)
    far = await Telephone(0).open()
    trunk = TrunkSettings(f"sip:shop@127.0.0.1:{far.at[1]}", "", ("tel:*",))
    async with dialled(trunk=trunk) as (door, phone):
        far.server = ("127.0.0.1", door.port)
        calling = asyncio.create_task(door.call(HELLO, "tel:+4940555"))
        invite = await far.asked_for("INVITE")
        far.answer(invite, 180)
        await far.asked("CANCEL")
        far.answer(invite, 487)
        await far.asked_for("ACK")
        with pytest.raises(NotAnswered, match="0.2"):
            await calling
        far.close()


async def test_a_trunk_that_sends_calls_is_registered_with() -> None:
    far = await Telephone(0).open()
    trunk = TrunkSettings(f"sip:shop@127.0.0.1:{far.at[1]}", "correct horse", register=True)
    async with dialled(trunk=trunk, allow=("10.9.8.7",)) as (door, phone):
        far.server = ("127.0.0.1", door.port)
        first = await far.asked_for("REGISTER")
        far.answer(first, 401, "", 'WWW-Authenticate: Digest realm="x", nonce="n"')
        second = await far.asked_for("REGISTER")
        assert 'username="shop"' in second.header("authorization")
        far.answer(second, 200, "", "Expires: 300")
        answer = await far.call()  # what comes from there is taken
        assert answer.status == 200
        phone.close()
    far.close()


async def test_calls_leave_nothing_behind() -> None:
    def resources() -> tuple[int, int]:
        gc.collect()
        return len(asyncio.all_tasks()), len(os.listdir("/proc/self/fd"))

    async with dialled() as (door, _):
        before = resources()
        for _ in range(20):
            one = await Telephone(door.port).open()
            await one.call()
            await one.ask("BYE")
            one.close()
        await until(lambda: not door._tasks)
        await asyncio.sleep(0.05)
        assert resources() == before


async def test_calls_come_over_tcp_too() -> None:
    async with dialled() as (door, phone):
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        invite = phone.request("INVITE", phone.sdp()).replace("SIP/2.0/UDP", "SIP/2.0/TCP")
        writer.write(b"\r\n\r\n" + invite.encode())

        async def read() -> Message:
            head = await reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: *(\d+)", head)
            return Message(head + await reader.readexactly(int(found[1]) if found else 0))

        statuses = [(answer := await read()).status for _ in range(3)]
        assert statuses == [100, 180, 200]
        assert "transport=tcp" in answer.header("contact")
        phone.to_tag = answer.header("to").partition("tag=")[2]
        writer.write(phone.request("ACK", cseq=1).encode())
        writer.write(phone.request("BYE").encode())
        assert (await read()).status == 200
        writer.close()
