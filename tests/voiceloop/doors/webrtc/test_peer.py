"""One peer's sound on its way out: what is sent when, and how a reply ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import numpy as np
import pytest
from aiortc.rtcdtlstransport import RTCCertificate

from audio.opus import DTX_BYTES, OpusDecoder, OpusEncoder
from tests.fakes import tone
from tests.voiceloop.doors.webrtc.test_offer import OFFER
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.webrtc.mux import Mux
from voiceloop.doors.webrtc.offer import parse_offer
from voiceloop.doors.webrtc.peer import Peer, PeerState

RATE_HZ = 24_000
CERTIFICATE = RTCCertificate.generateCertificate()


class Nobody:
    def __init__(self) -> None:
        self.n_heard = 0  # samples

    def hear(self, samples: bytes) -> None:
        self.n_heard += len(samples) // 2

    def take(self, event: str | bytes) -> None: ...

    def end(self, code: int, how: str) -> None: ...


class Sending:
    """A peer that is taken for connected, and what it was sent."""

    def __init__(self) -> None:
        mux = Mux(asyncio.get_running_loop().time)
        self.far = Nobody()
        self.peer = Peer(parse_offer(OFFER), mux, CERTIFICATE, self.far)
        self.packets: list[RtpPacket] = []
        self.peer._dtls.send_sound = lambda data: self.packets.append(RtpPacket.parse(data))
        self.peer._state = PeerState.LIVE

    def say(self, ms: float) -> None:
        self.peer.send_sound(tone(ms, RATE_HZ).astype("<i2").tobytes())

    def levels(self) -> list[float]:
        """Of what a listener without losses hears, 20 ms at a time."""
        decoder = OpusDecoder()
        return [float(np.abs(decoder.decode(one.payload)).max()) for one in self.packets]


@pytest.fixture
async def sending() -> AsyncIterator[Sending]:
    one = Sending()
    yield one
    await one.peer.close()


async def test_a_reply_ends_in_silence_that_is_sent(sending: Sending) -> None:
    sending.say(110)  # ends within a frame
    assert len(sending.packets) == 5
    await asyncio.sleep(0.6)
    levels = sending.levels()
    assert all(level > 4000 for level in levels[:5]) and levels[-1] < 100
    # Until the encoder leaves silence out, and the first packet of that.
    assert 8 <= len(levels) <= 20
    assert len(sending.packets[-1].payload) <= DTX_BYTES
    stamps = [packet.timestamp for packet in sending.packets]
    assert {(b - a) % 2**32 for a, b in zip(stamps, stamps[1:], strict=False)} == {960}


async def test_a_reply_that_goes_on_has_no_silence_in_between(sending: Sending) -> None:
    for _ in range(6):
        sending.say(20)
        await asyncio.sleep(0.015)
    assert len(sending.packets) == 6


async def test_the_next_reply_begins_a_spurt_at_its_time(sending: Sending) -> None:
    sending.say(40)
    await asyncio.sleep(0.6)
    n_before, last = len(sending.packets), sending.packets[-1].timestamp
    sending.say(40)
    first = sending.packets[n_before]
    assert [packet.marker for packet in sending.packets].count(True) == 2 and first.marker
    passed_ms = ((first.timestamp - last) % 2**32) / 48.0
    assert 200 < passed_ms < 1000


async def test_packets_that_wait_while_our_own_loop_stands_still_are_no_silence(
    sending: Sending,
) -> None:
    payload = OpusEncoder().encode(tone(20, RATE_HZ))
    for number in range(20):
        if number == 5:
            time.sleep(0.3)  # noqa: ASYNC251 - the machine ran something else
            for _ in range(3):  # from the socket to the peer, behind the timer that is due
                await asyncio.sleep(0)
        packet = RtpPacket(111, number, 960 * number, 7, payload=payload)
        sending.peer.receive_sound(packet.serialize())
    assert 20 <= sending.far.n_heard / 480 <= 21


async def test_while_packets_wait_for_their_turn_no_silence_is_written(sending: Sending) -> None:
    payload = OpusEncoder().encode(tone(20, RATE_HZ))
    sending.peer.receive_sound(RtpPacket(111, 0, 0, 7, payload=payload).serialize())
    sending.peer._line.receive(b"a datagram that nobody has decrypted yet")
    await asyncio.sleep(0.2)
    assert sending.far.n_heard == 480
    await sending.peer._line._recv()
    await asyncio.sleep(0.2)
    assert sending.far.n_heard > 480
