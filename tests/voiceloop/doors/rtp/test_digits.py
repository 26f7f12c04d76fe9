"""A key is told once, whatever the line does to its packets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from audio.codec import decode, encode
from audio.frames import VOICE_HZ, Samples
from audio.resample import Resampler
from voiceloop.doors.keypad import tones
from voiceloop.doors.rtp.digits import FRAME, KEYS, DigitReader, DigitWriter
from voiceloop.doors.rtp.packet import RtpPacket
from voiceloop.doors.rtp.send import RtpSender
from voiceloop.doors.rtp.tones import ToneListener

EVENT = 101
KEYPAD = st.text(KEYS, min_size=1, max_size=8)


def sent(keys: str, sequence: int = 65_500, stamp: int = 2**32 - 4000) -> list[RtpPacket]:
    """The packets of these keys, as our own writer makes them."""
    writer, sender = DigitWriter(), RtpSender(7, 0, sequence, stamp, 8_000)
    writer.put(keys)
    packets, now_s = [], 0.0
    while not writer.is_idle:
        due = writer.next()
        if due is not None:
            packets.append(sender.event(due.payload, EVENT, now_s, is_first=due.is_first))
        sender.skip(FRAME)
        now_s += 0.02
    return packets


def heard(packets: list[RtpPacket]) -> str:
    reader = DigitReader()
    return "".join(key for packet in packets if (key := reader.read(packet)) is not None)


@given(KEYPAD, st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1))
def test_keys_are_told_once_each_over_every_wrap(keys: str, sequence: int, stamp: int) -> None:
    assert heard(sent(keys, sequence, stamp)) == keys


@given(KEYPAD, st.randoms(use_true_random=False))
def test_any_loss_that_leaves_one_packet_of_a_key_and_any_repetition_tells_it_once(
    keys: str, random: object
) -> None:
    packets = sent(keys)
    kept: list[RtpPacket] = []
    for stamp in dict.fromkeys(packet.timestamp for packet in packets):
        of_key = [packet for packet in packets if packet.timestamp == stamp]
        some = random.sample(of_key, random.randint(1, len(of_key)))  # type: ignore[attr-defined]
        kept += some + some[: random.randint(0, len(some))]  # type: ignore[attr-defined]
    assert heard(kept) == keys


@given(KEYPAD, st.randoms(use_true_random=False))
def test_in_any_order_each_key_is_told_once(keys: str, random: object) -> None:
    packets = sent(keys)
    random.shuffle(packets)  # type: ignore[attr-defined]
    assert sorted(heard(packets)) == sorted(keys)


def test_each_key_ends_with_three_packets_that_say_so() -> None:
    packets = sent("5#")
    assert len({packet.timestamp for packet in packets}) == 2
    ends = [packet for packet in packets if packet.payload[1] & 0x80]
    assert [packet.payload[0] for packet in ends] == [5, 5, 5, 11, 11, 11]
    assert {packet.payload[2:] for packet in ends} == {(800).to_bytes(2, "big")}
    assert [packet.marker for packet in packets].count(True) == 2


def test_a_key_held_beyond_one_event_is_one_key() -> None:
    first = RtpPacket(EVENT, 1, 100, 7, True, bytes([5, 10]) + b"\xff\xff")
    onward = RtpPacket(EVENT, 2, 100 + 0xFFFF, 7, False, bytes([5, 10, 0, 160]))
    again = RtpPacket(EVENT, 3, 200_000, 7, True, bytes([5, 10, 0, 160]))
    assert heard([first, onward]) == "5"
    assert heard([first, onward, again]) == "55"


@given(st.binary(max_size=8), st.integers(0, 2**32 - 1))
def test_any_payload_is_a_key_or_none(payload: bytes, stamp: int) -> None:
    assert len(heard([RtpPacket(EVENT, 1, stamp, 7, False, payload)])) <= 1


def over_the_line(sound: Samples, gain: float, noise: float) -> Samples:
    """As it arrives by G.711, this much quieter, with white noise of this level."""
    rng = np.random.default_rng(7)
    louder = sound * gain + rng.normal(0.0, noise, len(sound))
    narrow = Resampler(VOICE_HZ, 8_000).push(np.clip(louder, -32768, 32767).astype(np.int16))
    return Resampler(8_000, VOICE_HZ).push(decode(encode(narrow, "pcmu"), "pcmu"))


@pytest.mark.parametrize("gain, noise", [(1.0, 0.0), (0.1, 100.0), (0.3, 300.0)])
@pytest.mark.parametrize("chunk", [480, 1024])
def test_tones_are_heard_once_each_through_g711_and_noise(
    gain: float, noise: float, chunk: int
) -> None:
    silence = np.zeros(2400, np.int16)
    pressed = np.frombuffer(tones(KEYS + "555"), "<i2")
    sound = np.concatenate([silence, pressed, silence])
    sound = over_the_line(sound, gain, noise)
    listener = ToneListener()
    told = "".join(listener.hear(sound[at : at + chunk]) for at in range(0, len(sound), chunk))
    assert told == KEYS + "555"


def test_one_tone_or_noise_is_no_key() -> None:
    at = np.arange(VOICE_HZ) * (2 * np.pi / VOICE_HZ)
    rng = np.random.default_rng(3)
    for sound in (
        8000 * np.sin(770 * at),
        rng.normal(0, 8000, VOICE_HZ),
        4000 * np.sign(np.sin(770 * at)),
    ):
        assert ToneListener().hear(sound.astype(np.int16)) == ""


def test_what_is_no_key_is_not_sent() -> None:
    with pytest.raises(ValueError, match="x"):
        DigitWriter().put("12x")
