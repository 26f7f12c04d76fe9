"""Samples out are time in, whatever the line does to the packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio.errors import AudioError
from audio.frames import VOICE_HZ, Samples
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.receive import (
    FRAME,
    LONGEST_BURST_S,
    LONGEST_GAP_S,
    OPUS_HZ,
    SILENT_AFTER_S,
    RtpReceiver,
)

UNITS = OPUS_HZ // VOICE_HZ  # of a timestamp, in a sample
OPUS, CONCEALED, RECOVERED = 111, -1000, -2000
LOUD = 200  # above every quiet frame


class Marks:
    """A codec whose packets are numbers: a frame of that value; 0 is silence, b"" no packet."""

    def decode(self, packet: bytes) -> Samples:
        if not packet:
            raise AudioError("expected a number, found nothing")
        number = int.from_bytes(packet, "big")
        return np.full(FRAME, number + LOUD if number else 0, np.int16)

    def recover(self, next_packet: bytes, n_samples: int = 0) -> Samples:
        return np.full(n_samples or FRAME, RECOVERED, np.int16)

    def conceal(self, n_samples: int) -> Samples:
        return np.full(n_samples, CONCEALED, np.int16)


class Line:
    """A receiver on a clock of its own, ticked whenever it is due."""

    def __init__(self, sequence: int = 65_530, timestamp: int = 2**32 - 3 * FRAME) -> None:
        self.receiver = RtpReceiver(Marks(), OPUS)
        self.sequence, self.timestamp = sequence, timestamp
        self.written: list[Samples] = []

    def arrives(self, number: int, at_s: float, value: int | None = None, **other: int) -> None:
        """Packet `number` of the caller, at this time. value: what it says, else its number."""
        self.passes(at_s)
        packet = RtpPacket(
            other.get("payload_type", OPUS),
            (self.sequence + number) % 2**16,
            (self.timestamp + number * FRAME * UNITS + other.get("jump", 0)) % 2**32,
            other.get("ssrc", 7),
            payload=(number + 1 if value is None else value).to_bytes(2, "big"),
        )
        self.written += self.receiver.packet(packet, at_s)

    def passes(self, until_s: float) -> None:
        while (due_s := self.receiver.due_s) is not None and due_s <= until_s:
            self.written += self.receiver.tick(due_s)

    @property
    def samples(self) -> Samples:
        return np.concatenate([np.zeros(0, np.int16), *self.written])

    @property
    def frames(self) -> list[int]:
        """The value of each frame."""
        return [int(value) - LOUD * (value > 0) for value in self.samples[::FRAME]]


def test_what_comes_in_order_passes_at_once_over_every_wrap() -> None:
    line = Line()
    for number in range(10):
        line.arrives(number, number * 0.02)
        assert line.frames == list(range(1, number + 2))


def test_a_hole_is_filled_by_the_next_packet_and_then_by_concealment() -> None:
    line = Line()
    for number in (0, 1, 3, 6, 7):  # no jitter: a hole waits for nothing
        line.arrives(number, number * 0.02)
    assert line.frames == [1, 2, RECOVERED, 4, CONCEALED, RECOVERED, 7, 8]
    assert line.receiver.n_concealed == 3 * FRAME


def test_a_packet_that_was_overtaken_is_waited_for_as_long_as_the_line_jitters() -> None:
    line = Line()
    for number in range(100):  # every other one 24 ms late
        line.arrives(number, number * 0.02 + 0.004 + 0.006 * (number % 2) * 3)
    assert 10 < line.receiver.jitter_ms < 25
    line.arrives(101, 2.02)
    assert line.frames[-1] == 100
    line.arrives(100, 2.03)
    assert line.frames[-3:] == [100, 101, 102]
    line.arrives(103, 2.06)
    line.passes(2.0599 + 0.06)
    assert line.frames[-2:] == [RECOVERED, 104]


def test_a_loop_that_was_late_waits_for_what_is_unread_and_no_longer() -> None:
    line = Line()
    for number, at_s in ((0, 0.0), (1, 0.05), (3, 0.06)):  # a line that jitters, and a hole
        line.arrives(number, at_s)
    due_s = line.receiver.due_s
    assert due_s is not None and 0.06 < due_s < 0.06 + LONGEST_GAP_S
    line.receiver.excuse(0.03, 0.1)
    assert line.receiver.due_s == pytest.approx(due_s + 0.03)
    line.passes(0.2)
    line.receiver.excuse(10.0, 0.2)  # for longer than nothing has come
    assert line.receiver.due_s is not None and line.receiver.due_s < 0.2 + 2 * SILENT_AFTER_S
    n_before = len(line.samples)
    line.passes(1.0)
    assert len(line.samples) > n_before + 25 * FRAME


def test_silence_is_written_by_the_clock_while_nothing_comes() -> None:
    line = Line()
    line.arrives(0, 0.0)
    line.passes(0.069)
    assert line.frames == [1]
    for at_s in (0.071, 0.5, 1.0, 30.0):
        line.passes(at_s)
        assert abs(len(line.samples) / VOICE_HZ - 0.02 - at_s) <= 0.031  # a frame and a half
    assert not line.samples[FRAME:].any()


def test_a_silence_that_the_sender_left_out_is_as_long_as_it_was() -> None:
    line = Line()
    for number in (0, 1, 40, 41):
        # Its numbers go on, its stamps do not: DTX.
        line.sequence = 100 if number < 2 else 62
        line.arrives(number, number * 0.02 + 0.001)
    assert line.frames == [1, 2, *[0] * 38, 41, 42]


def test_late_words_are_heard_and_the_quiet_after_them_pays() -> None:
    line = Line()
    line.arrives(0, 0.0)
    for number in range(1, 11):  # the line stood still for 0.2 s
        line.arrives(number, 0.2)
    assert [mark for mark in line.frames if mark] == list(range(1, 12))
    assert len(line.frames) > 11
    for number in range(11, 40):
        line.arrives(number, number * 0.02, value=0)
    assert len(line.frames) == 40


@settings(max_examples=150)
@given(
    st.lists(st.one_of(st.none(), st.floats(0.0, 0.3)), min_size=1, max_size=60),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0, 5_000_000, -5_000_000, 2**31]),
)
def test_samples_out_are_time_in(
    delays: list[float | None], sequence: int, timestamp: int, jump: int
) -> None:
    """Delays of each packet, None where it is lost, and a jump of the sender's clock in between."""
    line = Line(sequence, timestamp)
    arrivals = [(n * 0.02 + late, n) for n, late in enumerate([0.0, *delays]) if late is not None]
    for at_s, number in sorted(arrivals):
        line.arrives(number, at_s)
    words = [mark for mark in line.frames if mark > 0]
    assert words == sorted(set(words))  # in order, each once
    n_frames = len(delays) + 1
    for number in range(n_frames, n_frames + 100):  # a quiet second, and more
        line.arrives(number, number * 0.02 + 0.3, value=0, jump=jump)
    n_expected = n_frames + 100
    # The hole before a jump is as long as nobody can know.
    n_unknown = (
        0 if jump == 0 else next(n for n, d in enumerate([0.0, *delays][::-1]) if d is not None)
    )
    assert n_expected - 1 - n_unknown - (15 if jump else 0) <= len(line.samples) / FRAME
    assert len(line.samples) / FRAME <= n_expected + 1 + (15 if jump else 0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 3))))
def test_no_packets_make_more_sound_than_time_and_a_burst(
    found: list[tuple[int, int, int]],
) -> None:
    receiver = RtpReceiver(Marks(), OPUS)
    written: list[Samples] = []
    for sequence, timestamp, ssrc in found * 20:
        packet = RtpPacket(OPUS, sequence, timestamp, ssrc, payload=b"\x01")
        written += receiver.packet(packet, 0.0)
        written += receiver.tick(0.0)
    # What overdraws the budget is one hole with the packet behind it.
    assert sum(map(len, written)) / VOICE_HZ <= 2 * LONGEST_BURST_S + 0.02


def test_a_flood_in_order_is_cut_to_a_burst_and_the_call_goes_on() -> None:
    line = Line()
    for number in range(20_000):
        line.arrives(number, 0.0)
    assert len(line.samples) / VOICE_HZ <= LONGEST_BURST_S + 0.02
    before = len(line.frames)
    for number in range(20_000, 20_010):
        line.arrives(number, 5.0 + number * 0.02 - 400)
    assert line.frames[-10:] == [n + 1 for n in range(20_000, 20_010)]
    assert len(line.frames) > before


def test_strangers_duplicates_and_late_ones_are_passed_over() -> None:
    line = Line()
    line.arrives(5, 0.0)
    line.arrives(6, 0.02, payload_type=13)
    line.arrives(5, 0.02)
    line.arrives(4, 0.02)
    line.arrives(4000, 0.02)  # far away, and no successor follows
    line.arrives(6, 0.02)
    assert line.frames == [6, 7]


def test_a_sender_that_starts_again_is_followed() -> None:
    line = Line()
    line.arrives(0, 0.0)
    line.arrives(9000, 0.02, ssrc=8, jump=123)
    line.arrives(9001, 0.04, ssrc=8, jump=123)
    assert line.frames == [1, 9001, 9002]
    for number in (20_000, 20_001, 20_002):  # the same ssrc, other numbers: once it is sure
        line.arrives(number, 0.06 + (number - 20_000) * 0.02, ssrc=8)
    assert line.frames[-2:] == [20_002, 20_003]
    report = line.receiver.report()
    assert report is not None and (report.ssrc, report.n_lost) == (8, 0)


def test_a_packet_that_is_no_sound_is_concealed() -> None:
    line = Line()
    line.arrives(0, 0.0)
    line.written += line.receiver.packet(
        RtpPacket(OPUS, (line.sequence + 1) % 2**16, line.timestamp + FRAME * UNITS, 7), 0.02
    )
    assert line.frames == [1, CONCEALED]
