"""How one sender's packets arrive: their order, their loss, their jitter.

Source: RFC 3550, 6.4.1 and appendices A.1, A.3 and A.8.
"""

from __future__ import annotations

from voiceloop.doors.rtp.packet import RtpPacket, signed
from voiceloop.doors.rtp.rtcp import ReportBlock

MAX_DROPOUT = 3000  # RFC 3550, A.1: packets that may be missing at once, a minute of 20 ms
MAX_MISORDER = 100  # the same: how far behind a late one may come
MOST_LOST = (1 << 23) - 1  # 24 bits with a sign


class Reception:
    """The packets of one stream, numbered without wraps. clock_hz: of their timestamps."""

    def __init__(self, packet: RtpPacket, now_s: float, clock_hz: int) -> None:
        self.highest = 0  # of the numbers given
        self._clock_hz = clock_hz
        self._after_jump: int | None = None
        self._jitter = 0.0  # in units of the timestamps
        self._reported = (0, 0)  # expected and received at the last report
        self._begin(packet, now_s)

    @property
    def jitter_ms(self) -> float:
        """Mean deviation of the packets' spacing."""
        return 1000.0 * self._jitter / self._clock_hz

    def number(self, packet: RtpPacket, now_s: float) -> int | None:
        """The packet's place in the stream. None: a stranger, unless its successor follows.

        Where the sender starts again, with another ssrc or far away in its own numbers, its first
        packet counts as the one behind the highest.
        """
        sequence = self._first_sequence + self.highest - self._first
        ahead = signed(packet.sequence - sequence, 16)
        is_far = not -MAX_MISORDER <= ahead < MAX_DROPOUT
        if is_far and packet.ssrc == self.ssrc and packet.sequence != self._after_jump:
            self._after_jump = packet.sequence + 1 & 0xFFFF
            return None
        if is_far or packet.ssrc != self.ssrc:
            self.highest += 1
            self._begin(packet, now_s)
            ahead = 0
        self._after_jump = None
        self._n_received += 1
        self._measure(packet, now_s)
        number = self.highest + ahead
        self.highest = max(self.highest, number)
        return number

    def report(self) -> ReportBlock:
        """Return what to tell the sender; the fraction lost is counted from one report to the next.

        What its own report held, and when, is for whoever read that to add.
        """
        expected = self.highest - self._first + 1
        new_expected = expected - self._reported[0]
        new_lost = new_expected - (self._n_received - self._reported[1])
        self._reported = (expected, self._n_received)
        fraction = max(new_lost, 0) / new_expected if new_expected > 0 else 0.0
        lost = min(max(expected - self._n_received, -MOST_LOST - 1), MOST_LOST)
        highest = self._first_sequence + self.highest - self._first
        return ReportBlock(self.ssrc, fraction, lost, highest & 0xFFFFFFFF, int(self._jitter))

    def _begin(self, packet: RtpPacket, now_s: float) -> None:
        """Begin with its sender's numbers; ours go on."""
        self.ssrc = packet.ssrc
        self._first, self._first_sequence = self.highest, packet.sequence
        self._n_received, self._reported = 0, (0, 0)
        self._last = (packet.timestamp, now_s)

    def _measure(self, packet: RtpPacket, now_s: float) -> None:
        timestamp, at_s = self._last
        late = (now_s - at_s) * self._clock_hz - signed(packet.timestamp - timestamp, 32)
        self._last = (packet.timestamp, now_s)
        if abs(late) < self._clock_hz:  # more than a second is another clock, no jitter
            self._jitter += (abs(late) - self._jitter) / 16.0
