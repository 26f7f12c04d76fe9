"""Reports of both directions of a stream: ours each second, and what the peer's say of the line.

Every interval is measured by one monotonic clock, so times of day need not be right: a peer only
sends ours back.

Source: RFC 3550, 6.3 to 6.6, and appendix A.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from voiceloop.doors.rtp.packet import VERSION, MalformedPacket, signed

SENDER_REPORT, RECEIVER_REPORT, SOURCE_DESCRIPTION = 200, 201, 202
CNAME = 1
INTERVAL_S = 1.0  # a call is cut to what was heard, so its delay has to be known; 30 bytes/s
MAX_PACKETS = 32  # in one datagram: 1500 bytes hold no more that say anything
MAX_RTT_S = 10.0  # more is a report of another call or a made-up one
_HEAD = struct.Struct("!BBH")
_BLOCK = struct.Struct("!IIIIII")
_SENDER = struct.Struct("!IIIIII")


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """A receiver's report about one stream.

    fraction_lost: 0 to 1, since its last report. jitter: in units of the stream's timestamps.
    last_report: the middle 32 bits of the NTP time of the last sender report that it read; delay:
    how long ago, in 1/65536 s; both 0 where there was none.
    """

    ssrc: int
    fraction_lost: float
    n_lost: int
    highest: int
    jitter: int
    last_report: int = 0
    delay: int = 0

    def serialize(self) -> bytes:
        """24 bytes."""
        fraction = min(int(self.fraction_lost * 256), 255)
        lost = fraction << 24 | self.n_lost & 0xFFFFFF
        return _BLOCK.pack(self.ssrc, lost, self.highest, self.jitter, self.last_report, self.delay)

    @staticmethod
    def parse(data: bytes, start: int) -> ReportBlock:
        """The block at start, 24 bytes."""
        ssrc, lost, highest, jitter, last_report, delay = _BLOCK.unpack_from(data, start)
        n_lost = (lost & 0xFFFFFF) - ((lost & 0x800000) << 1)
        return ReportBlock(ssrc, (lost >> 24) / 256, n_lost, highest, jitter, last_report, delay)


@dataclass(frozen=True, slots=True)
class Report:
    """A sender's or a receiver's. middle: of its NTP time, None where it is a receiver's."""

    ssrc: int
    middle: int | None
    blocks: tuple[ReportBlock, ...]


def parse(data: bytes) -> list[Report]:
    """The reports of one datagram; other kinds are passed over. Raises: MalformedPacket."""
    found: list[Report] = []
    for count, kind, body in _packets(data):
        head = {SENDER_REPORT: 24, RECEIVER_REPORT: 4}.get(kind)
        if head is None:
            continue
        size = head + count * _BLOCK.size
        if len(body) < size:
            raise MalformedPacket(f"expected {size} bytes of RTCP, found {len(body)}")
        middle = None if kind == RECEIVER_REPORT else int.from_bytes(body[6:10], "big")
        starts = range(head, size, _BLOCK.size)
        blocks = tuple(ReportBlock.parse(body, start) for start in starts)
        found.append(Report(int.from_bytes(body[:4], "big"), middle, blocks))
    return found


def _packets(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Count, kind and body of each packet in a datagram. Raises: MalformedPacket."""
    start = 0
    for _ in range(MAX_PACKETS):
        if start == len(data):
            return
        if len(data) - start < _HEAD.size or data[start] >> 6 != VERSION:
            raise MalformedPacket(f"expected RTCP of version {VERSION} at byte {start} of it")
        first, kind, n_words = _HEAD.unpack_from(data, start)
        end = start + 4 + 4 * n_words
        if end > len(data):
            raise MalformedPacket(f"expected {end} bytes of RTCP, found {len(data)}")
        yield first & 31, kind, data[start + 4 : end]
        start = end
    raise MalformedPacket(f"expected at most {MAX_PACKETS} packets of RTCP in a datagram")


class Sending(Protocol):
    """The stream that we send, for a report: `RtpSender`."""

    ssrc: int
    n_packets: int
    n_bytes: int

    def timestamp_at(self, now_s: float) -> int: ...


class Receiving(Protocol):
    """The stream that comes, for a report: `RtpReceiver`."""

    def report(self) -> ReportBlock | None: ...


class RtcpLine:
    """The reports of one call. Call `write` each time `due_s` has come.

    ``round_trip_ms``: None until the peer has answered a report of ours. ``lost_percent``: of what
    we send, as the peer last said.
    """

    def __init__(self, sender: Sending, receiver: Receiving, cname: str, now_s: float) -> None:
        self.round_trip_ms: float | None = None
        self.lost_percent = 0.0
        self.due_s = now_s + INTERVAL_S
        self._sender = sender
        self._receiver = receiver
        self._cname = cname.encode()
        self._peer_report: tuple[int, float] | None = None  # its middle bits, and when it came

    def write(self, now_s: float) -> bytes:
        """A sender report of now, with a block on what comes, and our name."""
        self.due_s = now_s + INTERVAL_S
        seconds, fraction = _ntp(now_s)
        sender, block = self._sender, self._receiver.report()
        body = _SENDER.pack(
            sender.ssrc,
            seconds,
            fraction,
            sender.timestamp_at(now_s),
            sender.n_packets & 0xFFFFFFFF,
            sender.n_bytes & 0xFFFFFFFF,
        )
        if block is not None:
            body += self._answer(block, now_s).serialize()
        name = struct.pack("!IBB", sender.ssrc, CNAME, len(self._cname)) + self._cname
        name += bytes(4 - len(name) % 4)  # a list of items ends with at least one zero
        return _packet(SENDER_REPORT, block is not None, body) + _packet(
            SOURCE_DESCRIPTION, 1, name
        )

    def read(self, data: bytes, now_s: float) -> None:
        """Take in a datagram of the peer. Raises: MalformedPacket."""
        for report in parse(data):
            if report.middle is not None:
                self._peer_report = (report.middle, now_s)
            for block in report.blocks:
                if block.ssrc == self._sender.ssrc:
                    self._learn(block, now_s)

    def _answer(self, block: ReportBlock, now_s: float) -> ReportBlock:
        """The block, with which of the peer's reports came last, and how long ago."""
        if self._peer_report is None:
            return block
        middle, at_s = self._peer_report
        delay = min(round((now_s - at_s) * 65536), 0xFFFFFFFF)
        return replace(block, last_report=middle, delay=delay)

    def _learn(self, block: ReportBlock, now_s: float) -> None:
        self.lost_percent = 100.0 * block.fraction_lost
        if block.last_report:
            seconds, fraction = _ntp(now_s)
            now_middle = (seconds & 0xFFFF) << 16 | fraction >> 16
            round_trip_s = signed(now_middle - block.last_report - block.delay, 32) / 65536
            if abs(round_trip_s) <= MAX_RTT_S:
                self.round_trip_ms = max(0.0, 1000.0 * round_trip_s)  # rounding, on a short line


def _ntp(now_s: float) -> tuple[int, int]:
    """Seconds and their fraction, 32 bits each; never 0, which would mean none."""
    whole = int(now_s)
    return whole + 1 & 0xFFFFFFFF, int((now_s - whole) * (1 << 32))


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return _HEAD.pack(VERSION << 6 | count, kind, len(body) // 4) + body
