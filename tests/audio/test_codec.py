"""Wire encodings: exact tables, exact round trips, strict refusals."""

import numpy as np
import pytest

from audio import codec
from audio.errors import AudioError

EVERY_SAMPLE = np.arange(-32768, 32768).astype(np.int16)
EVERY_BYTE = bytes(range(256))


def test_ulaw_decodes_the_values_of_g711():
    assert codec.decode(b"\x00\x7f\x80\xff\x9f", "pcmu").tolist() == [-32124, 0, 32124, 0, 8316]


def test_alaw_decodes_the_values_of_g711():
    assert codec.decode(b"\x2a\xaa\x55\xd5\x80", "pcma").tolist() == [-32256, 32256, -8, 8, 5504]


@pytest.mark.parametrize("encoding", ["pcmu", "pcma"])
def test_g711_values_survive_a_round_trip(encoding):
    decoded = codec.decode(EVERY_BYTE, encoding)
    again = codec.decode(codec.encode(decoded, encoding), encoding)
    assert again.tolist() == decoded.tolist()


@pytest.mark.parametrize("encoding", ["pcmu", "pcma"])
def test_g711_error_is_at_most_half_a_step(encoding):
    decoded = codec.decode(codec.encode(EVERY_SAMPLE, encoding), encoding).astype(int)
    error = np.abs(decoded - EVERY_SAMPLE)
    inside = np.abs(EVERY_SAMPLE.astype(int)) <= 31_600  # louder samples clip
    allowed = np.maximum(np.abs(EVERY_SAMPLE.astype(int)) / 32 + 8, 8)
    assert np.all(error[inside] <= allowed[inside])


def test_pcm16_is_little_endian():
    assert codec.decode(b"\x01\x02\xff\xff", "pcm16").tolist() == [0x0201, -1]
    assert codec.encode(np.array([0x0201, -1], np.int16), "pcm16") == b"\x01\x02\xff\xff"


def test_odd_byte_count_is_refused_with_the_count():
    with pytest.raises(AudioError, match="found 3 bytes"):
        codec.decode(b"\x00\x00\x00", "pcm16")


def test_unknown_encoding_is_refused_by_name():
    with pytest.raises(AudioError, match="opus"):
        codec.decode(b"", "opus")
    with pytest.raises(AudioError, match="opus"):
        codec.encode(EVERY_SAMPLE, "opus")
