"""Which recordings are taken, and what is said about those that are not."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import pytest
import soundfile

from clients.errors import RecordingError
from clients.recording import (
    MAX_RECORDING_S,
    Recording,
    read_flac,
    read_recording,
    read_wav,
    write_flac,
    write_wav,
)
from tests.tables import each_row

TONE = (8000 * np.sin(np.arange(1600) / 10)).astype(np.int16)


def write(path: Path, *, n_channels: int = 1, width: int = 2, rate_hz: int = 16_000) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(n_channels)
        file.setsampwidth(width)
        file.setframerate(rate_hz)
        file.writeframes(bytes(n_channels * width * 800))
    return path


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


@each_row(
    ("name", "subtype", "rate_hz"),
    [
        ("a.wav", "PCM_U8", 8_000),
        ("a.wav", "PCM_24", 44_100),
        ("a.wav", "FLOAT", 48_000),
        ("a.wav", "ULAW", 8_000),
        ("a.flac", "PCM_16", 22_050),
        ("a.ogg", "VORBIS", 12_345),
        ("a.mp3", "MPEG_LAYER_III", 16_000),
        ("a.aiff", "PCM_16", 96_000),
    ],
)
@each_row("n_channels", [1, 2, 5])
def test_a_persons_recording_is_read_in_any_format_rate_and_number_of_channels(
    tmp_path: Path, name: str, subtype: str, rate_hz: int, n_channels: int
) -> None:
    if subtype == "MPEG_LAYER_III" and n_channels > 2:
        return  # MP3 has two at most
    times = np.arange(rate_hz) / rate_hz
    tone = 0.5 * np.sin(2 * np.pi * 300 * times)
    path = tmp_path / name
    # One channel sounds, the others are silent: the mean is that one over their number.
    channels = np.stack([tone, *[np.zeros(rate_hz)] * (n_channels - 1)], axis=1)
    soundfile.write(path, channels, rate_hz, subtype=subtype)
    recording = read_recording(path)
    assert recording.rate_hz == rate_hz
    assert recording.duration_ms == pytest.approx(1000, rel=0.1)  # MP3 pads to whole frames
    middle = recording.samples[rate_hz // 4 : 3 * rate_hz // 4].astype(float) / 32768
    assert np.sqrt(np.mean(middle**2)) == pytest.approx(0.5 / np.sqrt(2) / n_channels, rel=0.1)
    assert len(recording.at_rate(24_000).samples) == pytest.approx(24_000, rel=0.1)


def test_a_persons_recording_is_not_longer_than_a_call_may_be(tmp_path: Path) -> None:
    path = tmp_path / "long.flac"
    n_most = int(MAX_RECORDING_S * 8000)
    soundfile.write(path, np.zeros(n_most, np.int16), 8000)
    assert len(read_recording(path).samples) == n_most
    soundfile.write(path, np.zeros(n_most + 1, np.int16), 8000)
    with pytest.raises(RecordingError, match="of at most 600 s, found a longer one"):
        read_recording(path)


@pytest.mark.parametrize("content", [b"", b"RIFF", b"no audio " * 100])
def test_what_is_no_recording_is_refused_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=r"expected an audio file .*a\.wav"):
        read_recording(path)
    with pytest.raises(RecordingError, match="found no file"):
        read_recording(tmp_path / "none.wav")
    with pytest.raises(RecordingError, match="found a folder"):
        read_recording(tmp_path)
    write_wav(path, (TONE[:0],), 16_000)
    with pytest.raises(RecordingError, match="is empty"):
        read_recording(path)
