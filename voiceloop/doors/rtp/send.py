"""The agent's sound as RTP packets: numbered, stamped, marked where a spurt begins.

Within a spurt a stamp follows from the samples before it; after a pause the clock has moved it on,
nearly as long as nothing was said.

Source: RFC 3550, 5.1; RFC 3551, 4.1; RFC 7587.
"""

from __future__ import annotations

from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.receive import OPUS_HZ, UNITS

# Playout leads by 40 ms and its timer may be late by a frame: less than this is no pause.
PAUSE_S = 0.06
# A browser plays some 60 ms behind the stamps. It would let the first packets behind a pause wait
# until that is so again; stamps that tell of a pause shorter by so much are played at once.
# Measured in one comparison on shared cores (14 replies each): 34 ms in its buffer, not 54.
HELD_S = 0.08


class RtpSender:
    """One stream. sequence and timestamp: of the first packet, at random, as RFC 3550 asks.

    now_s: of the same clock as `RtpReceiver`'s.
    """

    def __init__(self, ssrc: int, payload_type: int, sequence: int, timestamp: int) -> None:
        self.ssrc = ssrc
        self.n_packets = 0
        self.n_bytes = 0  # of payload
        self._payload_type = payload_type
        self._sequence = sequence
        self._timestamp = timestamp  # of the next sample
        self.due_s: float | None = None  # when the next sample follows the last one sent

    def packet(self, payload: bytes, n_samples: int, now_s: float) -> RtpPacket:
        """The next packet, of n_samples at 24 kHz."""
        is_spurt = self.due_s is None or now_s - self.due_s > PAUSE_S
        if self.due_s is None:
            self.due_s = now_s
        elif is_spurt:
            self._move_on(max(0.0, now_s - self.due_s - HELD_S))
            self.due_s = now_s
        packet = RtpPacket(
            self._payload_type, self._sequence, self._timestamp, self.ssrc, is_spurt, payload
        )
        self._sequence = self._sequence + 1 & 0xFFFF
        self._move_on(n_samples * UNITS / OPUS_HZ)
        self.n_packets += 1
        self.n_bytes += len(payload)
        return packet

    def skip(self, n_samples: int) -> None:
        """Leave n_samples unsent: the encoder's DTX."""
        if self.due_s is not None:
            self._move_on(n_samples * UNITS / OPUS_HZ)

    def timestamp_at(self, now_s: float) -> int:
        """What the clock of the stream shows, for a sender report."""
        passed_s = 0.0 if self.due_s is None else now_s - self.due_s
        return self._timestamp + round(passed_s * OPUS_HZ) & 0xFFFFFFFF

    def _move_on(self, by_s: float) -> None:
        assert self.due_s is not None
        self.due_s += by_s
        self._timestamp = self._timestamp + round(by_s * OPUS_HZ) & 0xFFFFFFFF
