"""RTP and RTCP, to and from bytes, and what is made of them."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voiceloop.doors.rtp.packet import MalformedPacket, RtpPacket
from voiceloop.doors.rtp.receive import OPUS_HZ
from voiceloop.doors.rtp.reception import Reception
from voiceloop.doors.rtp.rtcp import ReportBlock, RtcpLine, parse
from voiceloop.doors.rtp.send import HELD_S, RtpSender

PACKETS = st.builds(
    RtpPacket,
    st.integers(0, 127),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.binary(max_size=50),
)


@given(PACKETS, st.integers(0, 15), st.integers(0, 5), st.integers(0, 9))
def test_a_packet_is_read_back_through_sources_extensions_and_padding(
    packet: RtpPacket, n_sources: int, n_words: int, n_padding: int
) -> None:
    data = packet.serialize()
    assert RtpPacket.parse(data) == packet
    extension = struct.pack("!HH", 0xBEDE, n_words) + bytes(4 * n_words) if n_words else b""
    padding = bytes(n_padding - 1) + bytes([n_padding]) if n_padding else b""
    first = data[0] | n_sources | bool(n_words) << 4 | bool(n_padding) << 5
    dressed = bytes([first]) + data[1:12] + bytes(4 * n_sources) + extension + data[12:] + padding
    assert RtpPacket.parse(dressed) == packet


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_read_or_refused(data: bytes, is_versioned: bool) -> None:
    data = b"\x81" + data if is_versioned else data
    for read in (RtpPacket.parse, parse):
        with suppress(MalformedPacket):
            read(data)


def test_stamps_follow_the_samples_in_a_spurt_and_the_clock_over_a_pause() -> None:
    sender = RtpSender(7, 111, sequence=65_535, timestamp=2**32 - 960)
    first = sender.packet(b"a", 480, 10.0)
    second = sender.packet(b"b", 480, 10.0)  # ahead of time, as playout leads
    third = sender.packet(b"c", 480, 10.05)
    sender.skip(480)
    after = sender.packet(b"d", 480, 11.0)
    assert [p.sequence for p in (first, second, third, after)] == [65_535, 0, 1, 2]
    assert [p.timestamp for p in (first, second, third)] == [2**32 - 960, 0, 960]
    assert after.timestamp == 47_040 - round(HELD_S * OPUS_HZ)
    assert [p.marker for p in (first, second, third, after)] == [True, False, False, True]
    assert sender.timestamp_at(11.02) == after.timestamp + 960
    assert (sender.n_packets, sender.n_bytes) == (4, 4)


class Received:
    """A receiver that has this to say."""

    def __init__(self, block: ReportBlock | None) -> None:
        self.block = block

    def report(self) -> ReportBlock | None:
        return self.block


def test_two_lines_learn_of_each_other_how_far_apart_they_are_and_what_is_lost() -> None:
    ours, theirs = RtpSender(7, 111, 0, 0), RtpSender(8, 111, 0, 0)
    ours.packet(b"a", 480, 0.0)
    line = RtcpLine(ours, Received(None), "us", 0.0)
    of_ours = ReportBlock(7, 0.25, -3, 70_000, 480)
    peer = RtcpLine(theirs, Received(of_ours), "them", 0.0)
    assert line.due_s == 1.0
    peer.read(line.write(1.0), 901.04)  # 40 ms away, by another clock
    line.read(peer.write(901.5), 1.54)
    assert line.round_trip_ms == pytest.approx(80.0, abs=0.1)
    assert line.lost_percent == 25.0 and peer.round_trip_ms is None
    line.read(struct.pack("!BBHI", 0x81, 203, 1, 8), 2.0)  # a goodbye says nothing of the line


def test_a_report_counts_what_was_lost_since_the_last_and_altogether() -> None:
    def packet(number: int) -> RtpPacket:
        return RtpPacket(111, number % 2**16, number * 960 % 2**32, 7)

    reception = Reception(packet(65_530), 0.0, OPUS_HZ)
    for number in range(65_530, 65_540):
        reception.number(packet(number), number * 0.02)
    assert reception.report() == ReportBlock(7, 0.0, 0, 65_539, 0)
    for number in (65_540, 65_543):
        reception.number(packet(number), number * 0.02)
    report = reception.report()
    assert (report.fraction_lost, report.n_lost, report.highest) == (0.5, 2, 65_543)
    assert parse(_receiver_report(report))[0].blocks == (report,)


def _receiver_report(block: ReportBlock) -> bytes:
    return struct.pack("!BBHI", 0x81, 201, 7, 9) + block.serialize()
