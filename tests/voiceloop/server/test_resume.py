"""A broken call over real sockets: dialled again here, or at another server of the same secret."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from clients.connection import Received, typed
from clients.errors import ConnectionFailed
from clients.resuming import ResumingConnection
from tests.fakes import FakeLanguageModel, instant_backends
from tests.voiceloop.server.test_app import Running, event, running, until
from tests.voiceloop.server.test_load_watch import Ahead
from voiceloop.access.keys import KeyRing, tenant_of
from voiceloop.admission.overload import Level
from voiceloop.backends import Backends
from voiceloop.config import Config, Limits
from voiceloop.operation import KeyQuota
from voiceloop.resume.ticket import Tickets

pytestmark = pytest.mark.virtual_time

KEYS = ("secret-key-1", "secret-key-2")


def keyed(key: str = KEYS[0]) -> dict[str, Any]:
    return {"additional_headers": {"Authorization": f"Bearer {key}"}}


def remembering() -> Backends:
    """Answers with all that the caller has said so far."""
    return instant_backends(
        language_model=FakeLanguageModel(
            lambda messages: " and ".join(m.content for m in messages if m.role == "user")
        )
    )


async def say(client: ClientConnection, text: str) -> str:
    """A turn in text; returns what is answered, behind the calls that the server makes."""
    item = typed(text)
    await client.send(json.dumps({"type": "conversation.item.create", "item": item}))
    asked = {"type": "response.create", "response": {"output_modalities": ["text"]}}
    await client.send(json.dumps(asked))
    while True:
        output = (await until(client, "response.done"))["response"]["output"]
        if not any(item["type"] == "function_call" for item in output):
            return str(output[0]["content"][0]["text"])


async def ticket_of(server: Running, client: ClientConnection, n_items: int) -> dict[str, Any]:
    """The ticket that holds so many items: it comes a moment after they do."""
    key = KEYS[0] if server.gateway.config.keys else None
    while True:
        ticket = await until(client, "voiceloop.resume_ticket")
        _, snapshot = server.gateway.tickets.read(ticket["ticket"], tenant_of(key))
        if len(snapshot.items) == n_items:
            return ticket


async def test_a_call_goes_on_at_another_server_that_has_the_same_keys() -> None:
    config = Config(keys=KEYS)
    async with running(config, remembering()) as one, running(config, remembering()) as other:
        async with one.connect("?voiceloop.resume=1", **keyed()) as client:
            assert await say(client, "two lattes") == "two lattes"
            held = await ticket_of(one, client, 2)
        async with other.connect(f"?voiceloop.returns={held['returns']}", **keyed()) as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]}))
            assert (await until(client, "voiceloop.resumed"))["items"] == 2
            assert await say(client, "one tea") == "two lattes and one tea"
        async with other.connect("", **keyed(KEYS[1])) as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]}))
            error = (await until(client, "error"))["error"]
            assert error["code"] == "resume_ticket_invalid"  # it is another key's


@pytest.mark.parametrize(("secret_key", "goes_on"), [("", False), ("shared by both", True)])
async def test_servers_without_keys_resume_each_others_calls_where_they_share_a_secret(
    secret_key: str, goes_on: bool
) -> None:
    config = Config(secret_key=tuple(filter(None, (secret_key,))))
    async with running(config, remembering()) as one, running(config, remembering()) as other:
        async with one.connect("?voiceloop.resume=1") as client:
            await say(client, "two lattes")
            held = await until(client, "voiceloop.resume_ticket")
        async with other.connect() as client:
            await client.send(json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]}))
            answer = await until(client, "voiceloop.resumed" if goes_on else "error")
            assert goes_on or answer["error"]["code"] == "resume_ticket_invalid"


async def test_the_head_of_a_ticket_opens_a_server_that_keeps_places_for_those_who_return() -> None:
    config = Config(keys=KEYS)
    async with running(config, remembering()) as one, running(config, remembering()) as other:
        async with one.connect("?voiceloop.resume=1", **keyed()) as client:
            await say(client, "two lattes")
            held = await until(client, "voiceloop.resume_ticket")
        other.gateway.load_watch._overload.level = Level.FULL
        refused = [("", KEYS[0]), (f"?voiceloop.returns={held['returns']}", KEYS[1])]
        for query, key in refused:
            with pytest.raises(InvalidStatus):
                async with other.connect(query, **keyed(key)):
                    pass
        async with other.connect(f"?voiceloop.returns={held['returns']}", **keyed()) as client:
            await event(client)
        with pytest.raises(InvalidStatus):  # it counts once
            async with other.connect(f"?voiceloop.returns={held['returns']}", **keyed()):
                pass


@pytest.mark.parametrize("is_at_once", [True, False])
async def test_copies_of_a_call_at_servers_that_share_workers_end_but_for_one(
    monkeypatch: pytest.MonkeyPatch, is_at_once: bool
) -> None:
    if not is_at_once:
        monkeypatch.setattr("voiceloop.call.session.AT_ONCE_S", -1.0)
    config, told = Config(keys=KEYS), list[tuple[str, str]]()
    shared = [replace(remembering(), tell_resumed=lambda *call: told.append(call)) for _ in "ab"]
    async with running(config, shared[0]) as one, running(config, shared[1]) as other:
        async with one.connect("?voiceloop.resume=1", **keyed()) as client:
            await say(client, "two lattes")
            held = await ticket_of(one, client, 2)
            shown = json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]})
            async with one.connect(**keyed()) as first, other.connect(**keyed()) as second:
                for copy in (first, second):
                    await copy.send(shown)
                    await until(copy, "voiceloop.resumed")
                one.gateway.resumed_elsewhere(*told[1])  # as workers pass it on
                if is_at_once:  # each hears of the other, and one keeps the call
                    other.gateway.resumed_elsewhere(*told[0])
                ended = [copy for copy in (first, second) if await _is_ended(copy)]
                assert len(ended) == 1 and (is_at_once or ended == [first])
        assert [call_id for call_id, _ in told] == [told[0][0]] * 2


async def _is_ended(client: ClientConnection) -> bool:
    """Whether the server lets go of it, which it does at once."""
    try:
        async with asyncio.timeout(0.5):
            while True:
                await client.recv()
    except TimeoutError:
        return False
    except ConnectionClosed as closed:
        return closed.rcvd is not None and closed.rcvd.code == 1000


async def test_what_is_left_of_a_broken_line_ends_when_its_call_goes_on() -> None:
    async with running(backends=remembering()) as server:
        async with (
            server.connect("?voiceloop.resume=1") as broken,
            server.connect("?voiceloop.resume=1") as again,
        ):
            await say(broken, "two lattes")
            held = await ticket_of(server, broken, 2)
            await again.send(json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]}))
            await until(again, "voiceloop.resumed")
            with pytest.raises(ConnectionClosed) as caught:
                await until(broken, "never")
            assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000
            assert await say(again, "one tea") == "two lattes and one tea"
            async with asyncio.timeout(5):
                while server.gateway.n_sessions != 1:  # noqa: ASYNC110 - nobody tells of it
                    await asyncio.sleep(0.01)


async def spoken_text(line: ResumingConnection, text: str) -> None:
    await line.send({"type": "conversation.item.create", "item": typed(text)})
    await line.send({"type": "response.create", "response": {"output_modalities": ["text"]}})


async def test_our_own_clients_dial_again_by_themselves_and_nothing_ends_for_their_users() -> None:
    seen: list[Received] = []

    async def seen_until(events: Any, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(10):
            async for received in events:
                seen.append(received)
                if received.type == kind:
                    return dict(received.event)
        raise AssertionError(kind)

    async with running(Config(keys=KEYS), remembering()) as server:
        line = await ResumingConnection.open(server.http, key=KEYS[0])
        events = line.events()
        await seen_until(events, "session.created")
        await spoken_text(line, "two lattes")
        await seen_until(events, "response.done")
        while (
            len(
                server.gateway.tickets.read(
                    (await seen_until(events, "voiceloop.resume_ticket"))["ticket"],
                    tenant_of(KEYS[0]),
                )[1].items
            )
            < 2
        ):
            pass
        line.abort()
        await asyncio.sleep(0)
        await line.send({"type": "input_audio_buffer.clear"})  # is lost, and no error
        await seen_until(events, "voiceloop.resumed")
        await spoken_text(line, "one tea")
        done = await seen_until(events, "response.done")
        assert done["response"]["output"][0]["content"][0]["text"] == "two lattes and one tea"
        assert line.n_resumed == 1
        await line.close()
        assert [received async for received in events] == []  # what we end ourselves has ended
        assert not [received for received in seen if received.type == "error"]


async def test_our_own_clients_end_where_nobody_goes_on_with_their_call() -> None:
    async with running(backends=remembering()) as server:
        line = await ResumingConnection.open(server.http)
        await spoken_text(line, "two lattes")
        events = line.events()
        async with asyncio.timeout(10):
            async for received in events:
                if received.type == "voiceloop.resume_ticket":
                    break
            server.gateway.calls.tickets = Tickets(
                KeyRing((), shared=("another server's",)), time.time
            )
            line.abort()
            with pytest.raises(ConnectionFailed, match="another line"):
                async for _ in events:
                    pass
        assert line.n_resumed == 0


async def test_a_call_that_the_server_ends_is_not_dialled_again() -> None:
    config = Config(limits=Limits(session_minutes=0.02))
    async with running(config) as server:
        line = await ResumingConnection.open(server.http)
        await spoken_text(line, "two lattes")
        async with asyncio.timeout(20):
            kinds = [received.type async for received in line.events()]
        assert "voiceloop.resume_ticket" in kinds
        assert (kinds[-1], line.n_resumed) == ("error", 0)
        assert "1001" in line.ended_by


async def test_who_comes_back_is_let_in_beside_the_line_that_the_server_thinks_is_there() -> None:
    config = Config(keys=KEYS, quota=KeyQuota(calls=1))
    async with running(config, remembering()) as server:
        async with server.connect("?voiceloop.resume=1", **keyed()) as broken:
            await say(broken, "two lattes")
            held = await ticket_of(server, broken, 2)
            async with server.connect(f"?voiceloop.returns={held['returns']}", **keyed()) as again:
                shown = {"type": "voiceloop.resume", "ticket": held["ticket"]}
                await again.send(json.dumps(shown))
                assert (await until(again, "voiceloop.resumed"))["items"] == 2


async def test_who_is_let_in_beyond_the_quota_and_resumes_nothing_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("voiceloop.call.session.RETURN_WAIT_S", 0.05)
    config = Config(keys=KEYS, quota=KeyQuota(calls=1))
    async with running(config, remembering()) as server:
        async with server.connect("?voiceloop.resume=1", **keyed()) as first:
            held = await until(first, "voiceloop.resume_ticket")
            async with server.connect(f"?voiceloop.returns={held['returns']}", **keyed()) as again:
                assert (await until(again, "error"))["error"]["code"] == "quota_exceeded"
                with pytest.raises(ConnectionClosed) as caught:
                    await until(again, "never")
                assert caught.value.rcvd is not None and caught.value.rcvd.code == 1008
            assert await say(first, "one tea") == "one tea"


async def test_the_id_of_a_call_that_ended_opens_no_call_beyond_the_minutes_of_its_key() -> None:
    config = Config(keys=KEYS, quota=KeyQuota(call_minutes=1.0))
    ahead = Ahead()
    async with running(config, clock=ahead) as server:
        async with server.connect(**keyed()) as client:
            call_id = (await event(client))["session"]["id"]
            ahead.s = 50.0
        async with asyncio.timeout(5):
            while server.gateway.n_sessions:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.01)
        with pytest.raises(InvalidStatus) as caught:
            async with server.connect(f"?voiceloop.returns={call_id}", **keyed()):
                pass
        assert caught.value.response.status_code == 429


async def test_a_key_that_has_its_calls_is_refused_before_the_upgrade_and_others_are_not() -> None:
    config = Config(keys=KEYS, quota=KeyQuota(calls=1))
    async with running(config) as server, server.connect(**keyed()) as client:
        await event(client)
        with pytest.raises(InvalidStatus) as caught:
            async with server.connect(**keyed()):
                pass
        assert caught.value.response.status_code == 429
        assert b"quota_exceeded" in (caught.value.response.body or b"")
        async with server.connect(**keyed(KEYS[1])) as other:
            await event(other)


async def test_a_line_that_took_the_call_up_and_broke_unseen_ends_when_the_next_one_does() -> None:
    async with running(backends=remembering()) as server:
        async with server.connect("?voiceloop.resume=1") as first:
            await say(first, "two lattes")
            held = await ticket_of(server, first, 2)
        shown = json.dumps({"type": "voiceloop.resume", "ticket": held["ticket"]})
        async with server.connect() as broken, server.connect() as again:
            await broken.send(shown)
            await until(broken, "voiceloop.resumed")
            await again.send(shown)
            await until(again, "voiceloop.resumed")
            with pytest.raises(ConnectionClosed) as caught:
                await until(broken, "never")
            assert caught.value.rcvd is not None and caught.value.rcvd.code == 1000
            assert await say(again, "one tea") == "two lattes and one tea"
