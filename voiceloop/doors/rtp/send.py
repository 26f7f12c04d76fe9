"""The agent's sound as RTP packets: numbered, stamped, marked where a spurt begins.

Within a spurt a stamp follows from the samples before it; after a pause the clock has moved it on,
nearly as long as nothing was said.

Source: RFC 3550, 5.1; RFC 3551, 4.1; RFC 7587.
"""

from __future__ import annotations

from audio.frames import VOICE_HZ
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.receive import OPUS_HZ

# Playout leads by 40 ms and its timer may be late by a frame: less than this is no pause.
PAUSE_S = 0.06
# A browser plays some 60 ms behind the stamps. It would let the first packets behind a pause wait
# until that is so again; stamps that tell of a pause shorter by so much are played at once.
# Measured in one comparison on shared cores (14 replies each): 34 ms in its buffer, not 54.
HELD_S = 0.08


class RtpSender:
    """One stream. sequence and timestamp: of the first packet, at random, as RFC 3550 asks.

    now_s: of the same clock as `RtpReceiver`'s; clock_hz: of the timestamps.
    """

    def __init__(
        self,
        ssrc: int,
        payload_type: int,
        sequence: int,
        timestamp: int,
        clock_hz: int = OPUS_HZ,
    ) -> None:
        self.ssrc = ssrc
        self.n_packets = 0
        self.n_bytes = 0  # of payload
        self._payload_type = payload_type
        self.clock_hz = clock_hz
        self._sequence = sequence
        self._timestamp = timestamp  # of the next sample
        self._event_stamp = timestamp
        self.due_s: float | None = None  # when the next sample follows the last one sent

    def packet(
        self, payload: bytes, n_samples: int, now_s: float, payload_type: int | None = None
    ) -> RtpPacket:
        """The next packet, of n_samples at 24 kHz. payload_type: where it holds something else."""
        is_spurt = self._catch_up(now_s)
        packet = self._number(payload, self._timestamp, is_spurt, payload_type)
        self._move_on(n_samples / VOICE_HZ)
        return packet

    def event(
        self, payload: bytes, payload_type: int, now_s: float, *, is_first: bool
    ) -> RtpPacket:
        """The next packet of a digit: all of them have the stamp of the first (RFC 4733, 2.5.1.2).

        How long it has lasted is for `skip` to say.
        """
        if is_first:
            self._catch_up(now_s)
            self._event_stamp = self._timestamp
        return self._number(payload, self._event_stamp, is_first, payload_type)

    def skip(self, n_samples: int) -> None:
        """Leave n_samples unsent: the encoder's DTX."""
        if self.due_s is not None:
            self._move_on(n_samples / VOICE_HZ)

    def timestamp_at(self, now_s: float) -> int:
        """Return what the clock of the stream shows, for a sender report."""
        passed_s = 0.0 if self.due_s is None else now_s - self.due_s
        return self._timestamp + round(passed_s * self.clock_hz) & 0xFFFFFFFF

    def _catch_up(self, now_s: float) -> bool:
        """Move the stamps over a pause; whether there was one."""
        is_spurt = self.due_s is None or now_s - self.due_s > PAUSE_S
        if self.due_s is None:
            self.due_s = now_s
        elif is_spurt:
            self._move_on(max(0.0, now_s - self.due_s - HELD_S))
            self.due_s = now_s
        return is_spurt

    def _number(
        self, payload: bytes, timestamp: int, is_marked: bool, payload_type: int | None
    ) -> RtpPacket:
        kind = self._payload_type if payload_type is None else payload_type
        packet = RtpPacket(kind, self._sequence, timestamp, self.ssrc, is_marked, payload)
        self._sequence = self._sequence + 1 & 0xFFFF
        self.n_packets += 1
        self.n_bytes += len(payload)
        return packet

    def _move_on(self, by_s: float) -> None:
        assert self.due_s is not None
        self.due_s += by_s
        self._timestamp = self._timestamp + round(by_s * self.clock_hz) & 0xFFFFFFFF
