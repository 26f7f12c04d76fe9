"""Opus takes speech there and back, says silence in a byte, and makes good what is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audio import opus
from audio.errors import AudioError, MissingExtra
from audio.frames import Samples, rms_dbfs
from audio.opus import DTX_BYTES, OpusDecoder, OpusEncoder

pytestmark = pytest.mark.skipif(not opus.is_available(), reason="there is no libopus")

FRAME = 480
LONGEST_DELAY = 200  # samples; libopus looks 6.5 ms ahead


def speechlike(seconds: float) -> Samples:
    """A voiced sound with harmonics that comes and goes three times a second."""
    t = np.arange(int(seconds * 24_000)) / 24_000
    voice = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 12))
    return (5000 * voice * (1 + np.sin(2 * np.pi * 3 * t)) / 2).astype(np.int16)


def frames(samples: Samples) -> list[Samples]:
    return [samples[start : start + FRAME] for start in range(0, len(samples), FRAME)]


def likeness(one: Samples, other: Samples) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def test_speech_comes_back_as_it_went() -> None:
    spoken = speechlike(2.0)
    encoder, decoder = OpusEncoder(), OpusDecoder()
    packets = [encoder.encode(frame) for frame in frames(spoken)]
    heard = np.concatenate([decoder.decode(packet) for packet in packets])
    assert len(heard) == len(spoken)
    sent = spoken[FRAME:-LONGEST_DELAY]
    assert (
        max(
            likeness(sent, heard[FRAME + delay : FRAME + delay + len(sent)])
            for delay in range(100, LONGEST_DELAY)
        )
        > 0.8
    )
    assert 16_000 < 8 * sum(map(len, packets)) / 2.0 < 48_000


def test_silence_goes_on_in_packets_that_need_not_be_sent() -> None:
    encoder = OpusEncoder()
    sizes = [len(encoder.encode(np.zeros(FRAME, np.int16))) for _ in range(100)]
    assert sum(size <= DTX_BYTES for size in sizes) > 80


def test_a_lost_packet_is_recovered_from_the_next_and_better_than_it_is_concealed() -> None:
    spoken = speechlike(2.0)
    encoder = OpusEncoder()
    encoder.expect_loss(20)
    packets = [encoder.encode(frame) for frame in frames(spoken)]
    whole = OpusDecoder()
    heard = [whole.decode(packet) for packet in packets]
    by_fec, by_guess = [], []
    for lost in range(10, 90, 7):
        for made in (by_fec, by_guess):
            decoder = OpusDecoder()
            for packet in packets[:lost]:
                decoder.decode(packet)
            one = decoder.recover(packets[lost + 1]) if made is by_fec else decoder.conceal(FRAME)
            made.append(likeness(heard[lost], one))
    assert np.median(by_fec) > 0.9
    assert np.median(by_fec) >= np.median(by_guess)


def test_concealment_fades() -> None:
    encoder, decoder = OpusEncoder(), OpusDecoder()
    for frame in frames(speechlike(0.4)):
        decoder.decode(encoder.encode(frame))
    levels = [rms_dbfs(decoder.conceal(FRAME)) for _ in range(20)]
    assert levels[-1] < levels[0] - 12


@settings(max_examples=200)
@given(st.binary(max_size=1500))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    decoder = OpusDecoder()
    for read in (decoder.decode, decoder.recover):
        try:
            assert len(read(data)) <= 2880
        except AudioError:
            pass


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(AudioError, match="expected 480 samples, found 479"):
        OpusEncoder().encode(np.zeros(479, np.int16))
    with pytest.raises(AudioError, match="found 11025 Hz"):
        OpusDecoder(11_025)
    for n_samples in (-1, 0, 5000):
        with pytest.raises(AudioError):
            OpusDecoder().conceal(n_samples)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    opus._library.cache_clear()
    opus.is_available.cache_clear()
    monkeypatch.setattr(opus, "find_spec", lambda name: None)
    monkeypatch.setattr(opus, "find_library", lambda name: None)
    try:
        assert not opus.is_available()
        with pytest.raises(MissingExtra, match=r"pip install 'voiceloop\[webrtc\]'"):
            OpusEncoder()
    finally:
        opus._library.cache_clear()
        opus.is_available.cache_clear()
