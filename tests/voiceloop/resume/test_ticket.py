"""Tickets: good for one call, one tenant, one minute, once."""

from __future__ import annotations

import random
import zlib

import msgspec
import pytest

from tests.hand_clock import HandClock
from voiceloop.access.keys import KeyRing
from voiceloop.access.signing import from_text
from voiceloop.backends import Tool
from voiceloop.errors import InvalidRequest
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.items import FunctionCall, FunctionCallOutput, Message, Part
from voiceloop.realtime.mcp.entry import read_entries
from voiceloop.realtime.settings import SessionSettings
from voiceloop.resume.snapshot import MAX_CHARACTERS as MAX_WRITTEN
from voiceloop.resume.snapshot import (
    MAX_PACKED_BYTES,
    Changes,
    Snapshot,
    changes_of,
    pack,
    snapshot_of,
    unpack,
)
from voiceloop.resume.ticket import MAX_CHARACTERS, REFRESH_S, RESUMABLE_S, Tickets

SHARED = KeyRing((), shared=("shared",))
OWN = SessionSettings(instructions="Be kind.")


def said(id: str, role: str, text: str, status: str = "completed") -> Message:
    kind = "output_audio" if role == "assistant" else "input_audio"
    part = Part(type=kind, transcript=text)
    return Message(id=id, role=role, status=status, content=(part,))


def taken_of(changes: Changes, conversation: Conversation) -> Snapshot:
    return snapshot_of(changes, conversation, SpokenReplies(conversation))


def snapshot(*items: Message) -> Snapshot:
    conversation = Conversation()
    for item in items:
        conversation.insert(item)
    return taken_of(changes_of(OWN, OWN), conversation)


CALL = snapshot(said("a", "user", "two lattes"), said("b", "assistant", "Two lattes, noted."))


@pytest.fixture
def clock() -> HandClock:
    return HandClock(1_000_000.0)


def code_of(tickets: Tickets, value: str, tenant: str = "t") -> str:
    with pytest.raises(InvalidRequest) as caught:
        tickets.read(value, tenant)
    return caught.value.wire_code


def test_a_server_with_the_same_secret_reads_a_ticket(clock: HandClock) -> None:
    ticket = Tickets(SHARED, clock).issue("t", "sess_1", 61.7, CALL)
    claims, found = Tickets(SHARED, clock).read(ticket.value, "t")
    assert (claims.call_id, claims.lived_s) == ("sess_1", 61)
    assert found == CALL
    assert ticket.value not in repr(ticket)


def test_a_ticket_is_refused_to_others_and_where_anything_of_it_was_changed(
    clock: HandClock,
) -> None:
    tickets = Tickets(SHARED, clock)
    value = tickets.issue("t", "sess_1", 0.0, CALL).value
    head, mac, body = value.split(".")
    other = tickets.issue("t", "sess_2", 0.0, snapshot(said("a", "user", "one tea"))).value
    forged = [
        (value, "another tenant"),
        (f"{head}.{mac}.{other.split('.')[2]}", "t"),
        (f"{other.split('.')[0]}.{mac}.{body}", "t"),
        (f"{head}.{mac}.{body[:-4]}", "t"),
        (f"{head}.{mac}", "t"),
        (value + "x" * MAX_CHARACTERS, "t"),
        ("", "t"),
        ("rt_..", "t"),
        ("rt_ä.ö.ü", "t"),
    ]
    for text, tenant in forged:
        assert code_of(tickets, text, tenant) == "resume_ticket_invalid", text[:80]
    assert code_of(Tickets(KeyRing((), shared=("other",)), clock), value) == "resume_ticket_invalid"
    tickets.read(value, "t")


def test_a_ticket_is_good_for_a_minute_and_what_passes_until_the_next_is_sent(
    clock: HandClock,
) -> None:
    tickets = Tickets(SHARED, clock)
    ticket = tickets.issue("t", "sess_1", 0.0, CALL)
    clock.now_s += RESUMABLE_S + REFRESH_S - 1
    tickets.read(ticket.value, "t")
    assert tickets.knows(ticket.head, "t")
    clock.now_s += 2
    assert code_of(tickets, ticket.value) == "resume_ticket_expired"
    assert not tickets.knows(ticket.head, "t")


def test_a_call_is_resumed_once_on_one_server_by_whichever_of_its_tickets(clock: HandClock) -> None:
    tickets = Tickets(SHARED, clock)
    first = tickets.issue("t", "sess_1", 0.0, CALL).value
    second = tickets.issue("t", "sess_1", 9.0, snapshot(said("a", "user", "two lattes"))).value
    claims, _ = tickets.read(first, "t")
    tickets.use(claims)
    assert code_of(tickets, second) == "resume_ticket_used"
    tickets.use(tickets.read(first, "t")[0])  # the line broke before its client knew
    tickets.settle(claims)
    assert code_of(tickets, first) == code_of(tickets, second) == "resume_ticket_used"
    Tickets(SHARED, clock).read(second, "t")  # on another it may


def test_a_place_at_the_door_is_kept_once_for_a_ticket_that_is_known(clock: HandClock) -> None:
    tickets = Tickets(SHARED, clock)
    head = tickets.issue("t", "sess_1", 0.0, CALL).head
    assert not tickets.knows(head, "another")
    assert not tickets.knows("sess_1", "t")
    assert tickets.knows(head, "t")
    tickets.let_in(head, "t")
    assert not tickets.knows(head, "t")
    tickets.let_in(head, "t")  # nothing happens


# --- what is in it --------------------------------------------------------------------------------


def test_only_what_stands_fast_is_written_down() -> None:
    found = snapshot(
        said("greeting", "assistant", "Hello!"),
        Message(id="silent", role="user", content=(Part(type="input_audio", transcript=None),)),
        said("asked", "user", "two lattes"),
        said("begun", "assistant", "Two lat", status="in_progress"),
    )
    assert [item.id for item in found.items] == ["greeting", "asked"]
    assert found.settings == {}


def test_tool_calls_and_their_results_are_written_down() -> None:
    conversation = Conversation()
    conversation.insert(FunctionCall(id="c", call_id="1", name="hours", arguments="{}"))
    conversation.insert(FunctionCallOutput(id="o", call_id="1", output="nine to five"))
    conversation.insert(
        FunctionCall(id="d", call_id="2", name="hours", arguments="{", status="in_progress")
    )
    taken = unpack(pack(taken_of(changes_of(OWN, OWN), conversation)))
    assert [item.id for item in taken.items] == ["c", "o"]


def test_what_a_client_told_for_an_mcp_server_is_not_in_a_ticket(clock: HandClock) -> None:
    public = {"type": "mcp", "server_label": "hours", "server_url": "https://a.example/mcp"}
    told = {"authorization": "s3cret-token", "headers": {"X-Api-Key": "s3cret-too"}}
    entries = read_entries([public, {**public, "server_label": "shop", **told}], "tools")
    listed = Tool("price", "", {}, server_label="shop")
    asked = msgspec.structs.replace(OWN, voice="deep", mcp=entries, tools=(listed,))
    taken = taken_of(changes_of(asked, OWN), Conversation())
    value = Tickets(SHARED, clock).issue("t", "sess_1", 0.0, taken).value
    for part in value.removeprefix("rt_").split("."):
        packed = from_text(part)
        assert b"s3cret" not in packed
        if packed.startswith(b"\x78"):
            assert b"hours" in zlib.decompress(packed)
            assert b"s3cret" not in zlib.decompress(packed)
    found = taken.settings_over(OWN)
    assert [entry.server_label for entry in found.mcp] == ["hours"]
    assert (found.voice, found.tools) == ("deep", ())


def test_settings_that_the_client_changed_hold_over_those_of_an_agent_that_was_changed() -> None:
    asked = msgspec.structs.replace(OWN, voice="deep", timeline=True)
    taken = unpack(pack(taken_of(changes_of(asked, OWN), Conversation())))
    newer = msgspec.structs.replace(OWN, instructions="Be brief.", temperature=0.5)
    found = taken.settings_over(newer)
    assert (found.voice, found.timeline) == ("deep", True)
    assert (found.instructions, found.temperature) == ("Be brief.", 0.5)


def test_settings_that_another_version_wrote_are_refused_by_name() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Snapshot({"speed": "fast"}, ()).settings_over(OWN)
    assert caught.value.wire_code == "resume_ticket_invalid"


def test_a_long_call_keeps_its_newest_items_and_the_bound(clock: HandClock) -> None:
    chance = random.Random(5)
    words = [
        said(str(number), "user", "".join(chance.choices("abcdefghijklmnop ", k=900)))
        for number in range(400)
    ]
    ticket = Tickets(SHARED, clock).issue("t", "sess_1", 0.0, snapshot(*words))
    assert len(ticket.value) <= MAX_CHARACTERS
    _, found = Tickets(SHARED, clock).read(ticket.value, "t")
    assert found.items and found.items == tuple(words[-len(found.items) :])


def test_settings_and_items_together_have_the_room_of_one_ticket() -> None:
    conversation = Conversation()
    for number in range(10):
        conversation.insert(said(str(number), "user", "a" * (MAX_WRITTEN // 10 - 1000)))
    half = msgspec.structs.replace(OWN, instructions="a" * (MAX_WRITTEN // 2))
    assert len(taken_of(changes_of(OWN, OWN), conversation).items) == 10
    assert len(taken_of(changes_of(half, OWN), conversation).items) == 5
    whole = msgspec.structs.replace(OWN, instructions="a" * MAX_WRITTEN)  # would pack well
    with pytest.raises(InvalidRequest) as caught:
        taken_of(changes_of(whole, OWN), conversation)
    assert caught.value.wire_code == "resume_too_large"


def test_a_body_that_unpacks_to_gigabytes_is_refused() -> None:
    bomb = zlib.compress(b"\0" * 20_000_000)
    assert len(bomb) < MAX_PACKED_BYTES
    for body in (bomb, b"", b"\0" * 100, zlib.compress(b"\xc1")):
        with pytest.raises(InvalidRequest):
            unpack(body)
