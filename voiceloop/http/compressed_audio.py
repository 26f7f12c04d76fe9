"""Compressed audio in and out, through PyAV: what people upload, and what they want to save.

PyAV is an extra (``uploads``): the FFmpeg in its wheels has parts under the GPL. Without it the
formats of libsndfile can be uploaded, which every installation has, and none be asked for.

Owns the choice of formats, and the bounds of decoding: the duration is counted while it decodes,
so that a small file which unpacks to hours is stopped at the limit. The container is chosen from
the first bytes, never guessed by the library: its playlist formats would open other files and URLs.
Everything here is CPU work of milliseconds to seconds: decoding runs in a process of its own
(``decoder.py``).
"""

from __future__ import annotations

import importlib.util
import io
from enum import Enum
from typing import Any

import numpy as np

from audio.frames import RECOGNIZER_HZ, Samples
from audio.resample import MAX_HZ, MIN_HZ, Resampler
from voiceloop.errors import InvalidRequest, MissingExtra

# response_format -> (container, codec, the codec's sample rate, media type)
ENCODINGS: dict[str, tuple[str, str, int, str]] = {
    "mp3": ("mp3", "libmp3lame", 24_000, "audio/mpeg"),
    "opus": ("ogg", "libopus", 48_000, "audio/ogg"),
    "aac": ("adts", "aac", 24_000, "audio/aac"),
    "flac": ("flac", "flac", 24_000, "audio/flac"),
}
# Names its length at its start: written when all of it is there. Without a length libsndfile, by
# which Python reads sound, cannot read it at all.
WHOLE = ("flac",)
# Containers that libsndfile reads as well.
PLAIN = ("wav", "flac", "ogg", "mp3")
HEAD_BYTES = 12  # that name a container
BLOCK_FRAMES = 65_536  # decoded at once
MAX_CHANNELS = 8
BIT_RATE = 48_000  # one voice needs no more at any of them


class Why(Enum):
    """The reason why a file is refused: none of its own words, nor a library's, is in it."""

    FORMAT = "other bytes than those of flac, m4a, mp3, mp4, ogg, wav or webm"
    NO_TRACK = "no audio track in it"
    SHAPE = f"a rate beyond {MIN_HZ} to {MAX_HZ} Hz, or more than {MAX_CHANNELS} channels"
    DAMAGED = "that it is damaged"
    EMPTY = "that it is empty"
    TOO_LONG = "one that lasts longer"
    TOO_SLOW = "that it takes too long to decode"
    BROKEN = "that it takes more memory or time than its length allows, or breaks the decoder"


class Unusable(InvalidRequest):
    """max_s: the longest that is taken, where it is known."""

    def __init__(self, why: Why, max_s: float | None = None) -> None:
        most = "" if max_s is None else f" of at most {max_s:g} s"
        super().__init__(
            f"file: expected audio{most} that can be decoded, found {why.value}",
            param="file",
            code="audio_too_long" if why is Why.TOO_LONG else "invalid_audio_file",
        )
        self.why = why


def has_av() -> bool:
    return importlib.util.find_spec("av") is not None


def load_av() -> Any:
    """PyAV. Raises: MissingExtra."""
    try:
        import av
    except ImportError:
        raise missing_av() from None
    return av


def missing_av() -> MissingExtra:
    return MissingExtra("Compressed audio needs PyAV: pip install 'voiceloop[uploads]'")


class _Sink(io.RawIOBase):
    """Collects what a muxer writes; it cannot be sought, so nothing is patched afterwards."""

    def __init__(self) -> None:
        self._data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._data += data
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._data)
        self._data.clear()
        return data


class Encoder:
    """PCM16 mono at ``rate_hz`` to one of ``ENCODINGS``, as it comes; one of ``WHOLE`` at its end.

    Raises: MissingExtra.
    """

    def __init__(self, name: str, rate_hz: int) -> None:
        av = load_av()
        container, codec, codec_hz, _ = ENCODINGS[name]
        self._av = av
        self._rate_hz = rate_hz
        self._sink = io.BytesIO() if name in WHOLE else _Sink()
        # Without these the mp3 writer would come back to its start when it ends.
        options = {"write_xing": "0", "id3v2_version": "0"} if container == "mp3" else {}
        self._output = av.open(self._sink, "w", format=container, options=options)
        self._stream = self._output.add_stream(codec, rate=codec_hz)
        self._stream.layout = "mono"
        if codec != "flac":
            self._stream.bit_rate = BIT_RATE
        self._resampler = av.AudioResampler(self._stream.format.name, "mono", codec_hz)
        self._n_samples = 0

    def push(self, pcm: bytes) -> bytes:
        """Add PCM16; what it adds to the file, maybe nothing yet."""
        if not pcm:
            return b""  # FFmpeg takes a frame of nothing for a lack of memory
        samples = np.frombuffer(pcm, "<i2")
        frame = self._av.AudioFrame.from_ndarray(samples[np.newaxis, :], "s16", "mono")
        frame.sample_rate = self._rate_hz
        frame.pts = self._n_samples
        self._n_samples += len(samples)
        self._encode(frame)
        return self._sink.take() if isinstance(self._sink, _Sink) else b""

    def finish(self) -> bytes:
        """The rest of the file."""
        self._encode(None)
        self._output.mux(self._stream.encode(None))
        self._output.close()
        return self._sink.take() if isinstance(self._sink, _Sink) else self._sink.getvalue()

    def _encode(self, frame: Any) -> None:
        for resampled in self._resampler.resample(frame):
            self._output.mux(self._stream.encode(resampled))


def container_of(data: bytes) -> str:
    """The container that a file's first bytes name. Raises: Unusable."""
    head = data[:HEAD_BYTES]
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    if head[4:8] == b"ftyp":
        return "mov"  # mp4 and m4a too
    marks = {b"OggS": "ogg", b"fLaC": "flac", b"\x1aE\xdf\xa3": "matroska", b"ID3": "mp3"}
    for mark, name in marks.items():
        if head.startswith(mark):
            return name
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "aac" if head[1] & 0x06 == 0 else "mp3"  # the layer bits are 0 in ADTS alone
    raise Unusable(Why.FORMAT)


def decode_audio(data: bytes, max_s: float) -> Samples:
    """The first audio track as mono int16 [n] at 16 kHz.

    Raises:
        Unusable: it is no audio, it is damaged, or it lasts longer than ``max_s``.
        MissingExtra: PyAV is absent, and it takes that.
    """
    container = container_of(data)
    if container in PLAIN and not has_av():
        return _decode_plain(data, max_s)
    av = load_av()
    pieces: list[Samples] = []
    n_samples = 0
    try:
        with av.open(io.BytesIO(data), "r", format=container) as source:
            if not source.streams.audio:
                raise Unusable(Why.NO_TRACK)
            resampler = av.AudioResampler("s16", "mono", RECOGNIZER_HZ)
            for frame in source.decode(source.streams.audio[0]):
                _check_shape(frame.sample_rate, len(frame.layout.channels))
                for resampled in resampler.resample(frame):
                    pieces.append(resampled.to_ndarray().reshape(-1))
                    n_samples += len(pieces[-1])
                if n_samples > max_s * RECOGNIZER_HZ:
                    raise Unusable(Why.TOO_LONG, max_s)
            pieces += [rest.to_ndarray().reshape(-1) for rest in resampler.resample(None)]
    except (av.FFmpegError, ValueError, EOFError):
        raise Unusable(Why.DAMAGED) from None
    if not n_samples:
        raise Unusable(Why.EMPTY)
    return np.concatenate(pieces)


def _decode_plain(data: bytes, max_s: float) -> Samples:
    """As ``decode_audio``, by libsndfile."""
    import soundfile

    pieces: list[Samples] = []
    n_samples = 0
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as source:
            _check_shape(source.samplerate, source.channels)
            resampler = Resampler(source.samplerate, RECOGNIZER_HZ)
            for block in source.blocks(BLOCK_FRAMES, dtype="int16", always_2d=True):
                mono = block.mean(axis=1).astype(np.int16)
                pieces.append(resampler.push(mono))
                n_samples += len(pieces[-1])
                if n_samples > max_s * RECOGNIZER_HZ:
                    raise Unusable(Why.TOO_LONG, max_s)
            pieces.append(resampler.flush())
    except soundfile.LibsndfileError:
        raise Unusable(Why.DAMAGED) from None
    if not n_samples:
        raise Unusable(Why.EMPTY)
    return np.concatenate(pieces)


def _check_shape(rate_hz: int, n_channels: int) -> None:
    """Refuse what would unpack to more than it can have been made of. Raises: Unusable."""
    if not MIN_HZ <= rate_hz <= MAX_HZ or not 1 <= n_channels <= MAX_CHANNELS:
        raise Unusable(Why.SHAPE)
