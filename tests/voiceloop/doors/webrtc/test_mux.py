"""The one port: who is who on it, and what strangers get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aioice import stun

from tests.hand_clock import HandClock
from voiceloop.doors.webrtc.mux import (
    CHECKS_AT_ONCE,
    DATAGRAMS_AT_ONCE,
    MAX_ADDRESSES,
    MAX_WAITING,
    IceLine,
    Mux,
)
from voiceloop.errors import ConfigError

STRANGER = ("192.0.2.9", 9)


class Sent:
    """A socket that keeps what is sent through it."""

    def __init__(self) -> None:
        self.datagrams: list[tuple[bytes, Any]] = []

    def sendto(self, data: bytes, address: Any) -> None:
        self.datagrams.append((data, address))


def check(ufrag: str, password: str, *, names: bool = True) -> bytes:
    """A connectivity check; names: it names its path as the one to use."""
    request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    request.attributes["USERNAME"] = f"{ufrag}:theirs"
    request.attributes["PRIORITY"] = 1
    if names:
        request.attributes["USE-CANDIDATE"] = None
    request.add_message_integrity(password.encode())
    return bytes(request)


@pytest.fixture
def clock() -> HandClock:
    return HandClock(100.0)


@pytest.fixture
async def mux(clock: HandClock) -> AsyncIterator[Mux]:
    one = Mux(clock)
    yield one
    one.close()


def receive(mux: Mux, data: bytes, address: tuple[str, int] = STRANGER) -> Sent:
    sent = Sent()
    mux.receive(data, address, sent)  # type: ignore[arg-type]
    return sent


def n_waiting(line: IceLine) -> int:
    return line._waiting.qsize()


async def test_a_signed_check_is_answered_and_opens_the_way(mux: Mux) -> None:
    line = mux.line()
    line.send(b"nowhere")
    sent = receive(mux, check(line.ufrag, line.password))
    ((answer, address),) = sent.datagrams
    told = stun.parse_message(answer)
    assert told.message_class is stun.Class.RESPONSE and address == STRANGER
    assert told.attributes["XOR-MAPPED-ADDRESS"] == STRANGER
    assert told.check_message_integrity(line.password.encode())
    assert line.is_checked.is_set()
    line.send(b"sound")
    assert sent.datagrams[1] == (b"sound", STRANGER)


async def test_strangers_get_nothing_and_reach_nobody(mux: Mux) -> None:
    line, other = mux.line(), mux.line()
    for data in (
        check(line.ufrag, other.password),  # not its key
        check("unknown1", line.password),
        stun_response(line),
        bytes([0, 1, 0, 0]),  # cut off
        b"\x80" + bytes(40),  # RTP of nobody
        b"\x16" + bytes(40),  # DTLS of nobody
        b"",
    ):
        assert not receive(mux, data).datagrams
    assert not line.is_checked.is_set() and not n_waiting(line)


def stun_response(line: IceLine) -> bytes:
    response = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE)
    response.attributes["USERNAME"] = f"{line.ufrag}:theirs"
    response.add_message_integrity(line.password.encode())
    return bytes(response)


async def test_a_peer_that_moves_is_followed_once_it_names_the_new_path(mux: Mux) -> None:
    line = mux.line()
    receive(mux, check(line.ufrag, line.password), ("192.0.2.1", 1))
    sent = receive(mux, check(line.ufrag, line.password, names=False), ("192.0.2.2", 2))
    line.send(b"one")
    assert len(sent.datagrams) == 1  # the answer to the check alone
    sent = receive(mux, check(line.ufrag, line.password), ("192.0.2.2", 2))
    line.send(b"two")
    assert sent.datagrams[-1] == (b"two", ("192.0.2.2", 2))
    for address in (("192.0.2.1", 1), ("192.0.2.2", 2)):  # both are its own
        receive(mux, b"\x80sound", address)
    assert n_waiting(line) == 2


async def test_one_call_holds_few_addresses_and_few_datagrams(mux: Mux, clock: HandClock) -> None:
    line, neighbour = mux.line(), mux.line()
    for port in range(1, 30):
        receive(mux, check(line.ufrag, line.password), ("192.0.2.1", port))
    assert len(mux._by_address) == MAX_ADDRESSES
    receive(mux, check(neighbour.ufrag, neighbour.password), STRANGER)
    for _ in range(3 * MAX_WAITING):
        receive(mux, b"\x80flood", ("192.0.2.1", 29))
    assert n_waiting(line) == MAX_WAITING
    n_taken = n_waiting(line)
    for _ in range(round(3 * DATAGRAMS_AT_ONCE)):  # read as fast as it comes
        if n_waiting(line):
            await line._recv()
        n_before = n_waiting(line)
        receive(mux, b"\x80flood", ("192.0.2.1", 29))
        n_taken += n_waiting(line) - n_before
    assert n_taken <= DATAGRAMS_AT_ONCE
    receive(mux, b"\x80sound")
    assert n_waiting(neighbour) == 1


async def test_a_flood_of_strangers_is_not_looked_into(
    mux: Mux, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, n_looks = mux.line(), 0
    receive(mux, check(line.ufrag, line.password), ("192.0.2.1", 1))
    parse = stun.parse_message

    def counted(data: bytes) -> stun.Message:
        nonlocal n_looks
        n_looks += 1
        return parse(data)

    monkeypatch.setattr(stun, "parse_message", counted)
    forged = check("unknown1", "x" * 24)
    for port in range(3 * round(CHECKS_AT_ONCE)):
        receive(mux, forged, ("192.0.2.9", port))
    assert n_looks < CHECKS_AT_ONCE
    assert receive(mux, check(line.ufrag, line.password), ("192.0.2.1", 1)).datagrams


async def test_what_a_closed_call_held_is_given_back(mux: Mux) -> None:
    line = mux.line()
    receive(mux, check(line.ufrag, line.password))
    waiting = asyncio.ensure_future(line._recv())
    line.close()
    line.close()
    with pytest.raises(ConnectionError):
        await waiting
    assert not mux._by_address and not mux._by_ufrag
    assert not receive(mux, check(line.ufrag, line.password)).datagrams


async def test_gateways_of_one_machine_take_the_next_port(clock: HandClock) -> None:
    first, second = Mux(clock), Mux(clock)
    try:
        await first.open("127.0.0.1", 0)
        await second.open("127.0.0.1", first.port)
        assert first.port < second.port < first.port + 16
        assert first.candidates("") == [("127.0.0.1", first.port)]
        assert first.candidates("203.0.113.7") == [("203.0.113.7", first.port)]
        with pytest.raises(ConfigError, match="webrtc.port"):
            await Mux(clock).open("192.0.2.1", 0)  # no address of this machine
    finally:
        first.close()
        second.close()


async def test_a_socket_of_each_family_has_the_same_port(clock: HandClock) -> None:
    mux = Mux(clock)
    await mux.open("0.0.0.0", 0)
    ports = {transport.get_extra_info("sockname")[1] for transport in mux._sockets}
    assert ports == {mux.port}
    mux.close()
