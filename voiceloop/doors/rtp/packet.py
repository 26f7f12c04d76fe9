"""One RTP packet, to and from bytes.

Source: RFC 3550, 5.1 and 5.3.1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from voiceloop.errors import InvalidRequest

VERSION = 2
_FIXED = struct.Struct("!BBHII")


class MalformedPacket(InvalidRequest):
    """A packet that is not RTP or RTCP; whoever reads the line drops it and goes on."""

    code: ClassVar[str] = "malformed_packet"


@dataclass(frozen=True, slots=True)
class RtpPacket:
    """sequence: 16 bits. timestamp: 32 bits, in units of the payload's clock; ssrc: 32 bits."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    marker: bool = False
    payload: bytes = b""

    def serialize(self) -> bytes:
        """The packet's bytes, with neither extensions nor padding."""
        return (
            _FIXED.pack(
                VERSION << 6,
                self.marker << 7 | self.payload_type,
                self.sequence,
                self.timestamp,
                self.ssrc,
            )
            + self.payload
        )

    @staticmethod
    def parse(data: bytes) -> RtpPacket:
        """The packet in data; contributing sources, extensions and padding are passed over.

        Raises: MalformedPacket.
        """
        if len(data) < _FIXED.size or data[0] >> 6 != VERSION:
            raise MalformedPacket(
                f"expected an RTP packet of version {VERSION}, found {len(data)} bytes"
            )
        first, second, sequence, timestamp, ssrc = _FIXED.unpack_from(data)
        start = _FIXED.size + 4 * (first & 15)
        if first & 0x10:  # 4 bytes say how many words follow them
            n_words = int.from_bytes(data[start + 2 : start + 4], "big")
            start += 4 + 4 * n_words
        end = len(data)
        if first & 0x20:  # the last byte counts itself
            end -= max(data[-1], 1)
        if start > end:
            raise MalformedPacket(
                f"expected a header of at most {end} bytes, found {start} of {len(data)}"
            )
        return RtpPacket(
            second & 0x7F, sequence, timestamp, ssrc, bool(second & 0x80), data[start:end]
        )


def signed(difference: int, bits: int) -> int:
    """The difference of two counters that wrap at so many bits, by the shorter way round."""
    half = 1 << bits - 1
    return (difference + half) % (2 * half) - half
