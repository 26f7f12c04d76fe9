"""Audio in files, through libsndfile: what people upload, and what they want to save.

Owns the choice of formats, and the bounds of decoding: the duration is counted while it decodes,
so that a small file which unpacks to hours is stopped at the limit. The container is chosen from
the first bytes. Everything here is CPU work of milliseconds to seconds: decoding runs in a process
of its own (``decoder.py``).
"""

from __future__ import annotations

import io
from enum import Enum
from typing import Any

import numpy as np

from audio.frames import RECOGNIZER_HZ, Samples
from audio.resample import MAX_HZ, MIN_HZ, Resampler
from voiceloop.errors import InvalidRequest

# response_format -> (container, codec, media type)
ENCODINGS: dict[str, tuple[str, str, str]] = {
    "mp3": ("MP3", "MPEG_LAYER_III", "audio/mpeg"),
    "opus": ("OGG", "OPUS", "audio/ogg"),
    "flac": ("FLAC", "PCM_16", "audio/flac"),
}
# Names its length at its start: written when all of it is there. Without a length libsndfile
# cannot read it at all.
WHOLE = ("flac",)
HEAD_BYTES = 12  # that name a container
BLOCK_FRAMES = 65_536  # decoded at once
MAX_CHANNELS = 8


class Why(Enum):
    """The reason why a file is refused: none of its own words, nor a library's, is in it."""

    FORMAT = "other bytes than those of flac, mp3, ogg or wav"
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


class _Sink(io.BytesIO):
    """A file whose beginning is taken while it is written: what comes back to that is too late."""

    def __init__(self) -> None:
        super().__init__()
        self._n_taken = 0

    def take(self) -> bytes:
        data = bytes(self.getbuffer()[self._n_taken :])
        self._n_taken += len(data)
        return data


class Encoder:
    """PCM16 mono at ``rate_hz`` to one of ``ENCODINGS``, as it comes; one of ``WHOLE`` at its end.

    An mp3 begins with a silent frame, in which its length would stand had it been whole.
    """

    def __init__(self, name: str, rate_hz: int) -> None:
        import soundfile

        container, codec, _ = ENCODINGS[name]
        self._is_whole = name in WHOLE
        self._sink = _Sink()
        # Who reads an mp3 without its length takes that from its first frame.
        options = {"bitrate_mode": "CONSTANT", "compression_level": 0.7} if name == "mp3" else {}
        self._file: Any = soundfile.SoundFile(
            self._sink, "w", rate_hz, 1, format=container, subtype=codec, **options
        )

    def push(self, pcm: bytes) -> bytes:
        """Add PCM16; what it adds to the file, maybe nothing yet."""
        self._file.write(np.frombuffer(pcm, "<i2"))
        return b"" if self._is_whole else self._sink.take()

    def finish(self) -> bytes:
        """The rest of the file."""
        self._file.close()
        return self._sink.take()


def container_of(data: bytes) -> str:
    """The container that a file's first bytes name. Raises: Unusable."""
    head = data[:HEAD_BYTES]
    if head[:4] == b"RIFF" and head[8:12] == b"WAVE":
        return "wav"
    marks = {b"OggS": "ogg", b"fLaC": "flac", b"ID3": "mp3"}
    for mark, name in marks.items():
        if head.startswith(mark):
            return name
    # The layer's bits are 0 in AAC.
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0 and head[1] & 0x06:
        return "mp3"
    raise Unusable(Why.FORMAT)


def decode_audio(data: bytes, max_s: float) -> Samples:
    """The audio as mono int16 [n] at 16 kHz.

    Raises: Unusable: it is no audio, it is damaged, or it lasts longer than ``max_s``.
    """
    import soundfile

    container_of(data)
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
