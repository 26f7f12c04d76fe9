"""Which recordings are taken, and what is said about those that are not."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest

from clients.errors import RecordingError
from clients.recording import Recording, read_flac, read_wav, write_flac, write_wav

TONE = (8000 * np.sin(np.arange(1600) / 10)).astype(np.int16)


def write(path: Path, *, n_channels: int = 1, width: int = 2, rate_hz: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(n_channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(bytes(n_channels * width * 800))
    return path


def test_a_mono_16_bit_wav_is_read_as_it_is(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", (TONE,), 16_000)
    recording = read_wav(tmp_path / "a.wav")
    assert recording.rate_hz == 16_000
    assert np.array_equal(recording.samples, TONE)
    assert recording.duration_ms == 100


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ({"n_channels": 2}, "found stereo"),
        ({"n_channels": 6}, "found 6 channels"),
        ({"width": 1}, "found 8-bit samples"),
        ({"width": 3}, "found 24-bit samples"),
        ({"rate_hz": 12_345}, "found 12345 Hz"),
    ],
)
def test_another_shape_is_refused_by_name(
    tmp_path: Path, shape: dict[str, int], found: str
) -> None:
    path = write(tmp_path / "a.wav", **shape)
    with pytest.raises(RecordingError, match=found) as error:
        read_wav(path)
    assert "expected a mono 16-bit PCM WAV" in str(error.value)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"ID3 this is no WAV at all" * 10])
def test_what_is_no_wav_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match="found no readable WAV in .*: .+"):
        read_wav(path)


def test_an_empty_wav_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    write_wav(tmp_path / "empty.wav", (TONE[:0],), 16_000)
    with pytest.raises(RecordingError, match="is empty"):
        read_wav(tmp_path / "empty.wav")
    with pytest.raises(RecordingError, match="found a folder"):
        read_wav(tmp_path)
    with pytest.raises(RecordingError, match="found no file"):
        read_wav(tmp_path / "none.wav")


def test_a_wav_cut_off_in_a_sample_loses_that_sample_only(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    write_wav(path, (TONE,), 16_000)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read_wav(path).samples) == len(TONE) - 1


def test_flac_comes_back_bit_for_bit(tmp_path: Path) -> None:
    write_flac(tmp_path / "a.flac", Recording(TONE, 16_000))
    assert np.array_equal(read_flac(tmp_path / "a.flac").samples, TONE)


def test_what_is_no_flac_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.flac").write_bytes(b"nothing of the kind")
    with pytest.raises(RecordingError, match="expected a FLAC file"):
        read_flac(tmp_path / "a.flac")


def test_resampling_keeps_the_length_in_time_and_clips() -> None:
    loud = Recording(np.full(1600, 32767, dtype=np.int16), 16_000)
    resampled = loud.at_rate(24_000)
    assert resampled.rate_hz == 24_000
    assert len(resampled.samples) == 2400
    assert resampled.samples.min() >= 0  # no wrap-around where the filter overshoots


def test_channels_of_unequal_length_are_padded(tmp_path: Path) -> None:
    write_wav(tmp_path / "a.wav", (TONE, TONE[:100]), 24_000)
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert (file.getnchannels(), file.getnframes()) == (2, 1600)
        frames = np.frombuffer(file.readframes(1600), dtype="<i2").reshape(-1, 2)
    assert np.array_equal(frames[:, 0], TONE)
    assert not frames[100:, 1].any()
