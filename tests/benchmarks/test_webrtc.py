"""The bad line of benchmarks.webrtc is bad in the same way each time; its bars can be missed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.webrtc.__main__ import WEBRTC, WEBSOCKET, Calls, bars_of
from benchmarks.webrtc.relay import Impairment, is_sound, relaying

N = 200


class Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.transport.sendto(data, addr)


class Peer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.received: list[int] = []

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.received.append(int.from_bytes(data, "big"))


async def through(impairment: Impairment, seed: int) -> tuple[list[int], int]:
    """N datagrams to an echo and back; how many were lost on the way there."""
    loop = asyncio.get_running_loop()
    echo, _ = await loop.create_datagram_endpoint(Echo, ("127.0.0.1", 0))
    target = echo.get_extra_info("sockname")
    async with relaying(target, impairment, seed) as relay:
        peer, heard = await loop.create_datagram_endpoint(
            Peer, remote_addr=("127.0.0.1", relay.port)
        )
        for number in range(N):
            peer.sendto(number.to_bytes(2, "big"))
        n_left = None
        while n_left != len(heard.received):
            n_left = len(heard.received)
            await asyncio.sleep(0.1 + 2 * (impairment.delay_ms + impairment.jitter_ms) / 1000)
        lost = relay.n_lost["up"] + relay.n_lost["down"]
        peer.close()
    echo.close()
    return heard.received, lost


async def test_a_good_line_passes_all_in_order_both_ways() -> None:
    assert await through(Impairment(), 1) == (list(range(N)), 0)


async def test_a_bad_line_loses_the_same_at_every_run_of_a_seed() -> None:
    (first, lost), (again, _), (other, _) = [
        await through(Impairment(loss=0.1), seed) for seed in (1, 1, 2)
    ]
    assert first == again == sorted(first) != other
    assert lost == N - len(first) and 0.1 * N < lost < 0.3 * N


async def test_datagrams_that_are_late_overtake_one_another() -> None:
    came, lost = await through(Impairment(delay_ms=1, jitter_ms=30), 1)
    assert sorted(came) == list(range(N)) != came and lost == 0


@pytest.mark.parametrize(
    ("data", "is_it"),
    [
        (bytes([0x80, 111]) + bytes(60), True),
        (bytes([0x90, 0x80 | 111]) + bytes(60), True),
        (bytes([0x80, 200]) + bytes(60), False),  # a report
        (bytes([0, 1]) + bytes(60), False),  # STUN
        (bytes([22, 254]) + bytes(60), False),  # DTLS
    ],
)
def test_a_packet_of_sound_is_told_from_what_else_is_on_the_line(data: bytes, is_it: bool) -> None:
    assert is_sound(data) is is_it


def calls(gap_ms: float, wire_ms: float, heard: str = "one two") -> Calls:
    found = Calls()
    turn = {
        "said": "One, two.", "heard": heard, "gap_ms": gap_ms, "audible_ms": gap_ms + 40,
        "wire_ms": wire_ms, "cut_in": False, "cut_is_soft": False, "answered": True,
        "barge_in": {"wire_ms": 100.0, "audible_ms": 140.0},
    }  # fmt: skip
    found.add(
        {"turns": [turn], "dial_ms": 20.0, "created_ms": 90.0, "told_and_heard_ms": [[900, 850]]}
    )
    return found


@pytest.mark.parametrize(
    ("ear_ms", "wire_ms", "holds"), [(24, 29, (True, True)), (26, 31, (False, False))]
)
def test_what_webrtc_adds_is_counted_at_the_ear_and_on_the_wire(
    ear_ms: float, wire_ms: float, holds: tuple[bool, bool]
) -> None:
    figures = {
        WEBRTC: calls(340 + ear_ms, 300 + wire_ms).figures(False),
        WEBSOCKET: calls(300, 0).figures(True),
    }
    held = {bar.name: bar.holds for bar in bars_of(figures)}
    assert (held["added gap, ear, p50"], held["added gap, wire, p95"]) == holds
    assert held["history against what was heard, p95"]


def test_words_that_loss_took_are_held_against_the_same_line_without_it() -> None:
    figures = {f"{n} % lost": calls(400, 380).figures(False) for n in (0, 1, 10)}
    figures["5 % lost"] = calls(400, 380, heard="one").figures(False)
    held = {bar.name: bar.holds for bar in bars_of(figures)}
    assert held["1 % lost: words missing, added"] and held["1 % lost: gap added, p50"]
    assert not held["5 % lost: words missing, added"]
