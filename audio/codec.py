"""Audio as it is on the wire: little-endian PCM16 and G.711, to and from int16 samples.

Decoding is strict: anything that is not exactly the named encoding raises `AudioError`, so that
noise never reaches a recognizer in the guise of speech.
"""

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import AudioError
from .frames import BYTES_PER_SAMPLE, Samples

Encoding: TypeAlias = Literal["pcm16", "pcmu", "pcma"]

_ULAW_BIAS = 132  # G.711 adds 33 to the 14-bit magnitude so that each segment doubles: 33 << 2
_ULAW_CLIP = 32_635  # 32767 - _ULAW_BIAS: the largest magnitude that still fits segment 7


def decode(data: bytes, encoding: Encoding) -> Samples:
    """Samples [n] int16 of data in the encoding.

    Raises: AudioError on an odd byte count of pcm16 or an unknown encoding.
    """
    match encoding:
        case "pcm16":
            if len(data) % BYTES_PER_SAMPLE:
                raise AudioError(
                    f"expected 16-bit samples (an even number of bytes), found {len(data)} bytes"
                )
            return np.frombuffer(data, dtype="<i2").astype(np.int16, copy=False)
        case "pcmu":
            return _ULAW_TO_LINEAR[np.frombuffer(data, dtype=np.uint8)]
        case "pcma":
            return _ALAW_TO_LINEAR[np.frombuffer(data, dtype=np.uint8)]
    raise AudioError(f"expected the encoding pcm16, pcmu or pcma, found {encoding!r}")


def encode(samples: Samples, encoding: Encoding) -> bytes:
    """Bytes of samples [n] int16 in the encoding. Raises: AudioError on an unknown encoding."""
    match encoding:
        case "pcm16":
            return samples.astype("<i2", copy=False).tobytes()
        case "pcmu":
            return _LINEAR_TO_ULAW[samples.view(np.uint16)].tobytes()
        case "pcma":
            return _LINEAR_TO_ALAW[samples.view(np.uint16)].tobytes()
    raise AudioError(f"expected the encoding pcm16, pcmu or pcma, found {encoding!r}")


def _ulaw_to_linear() -> Samples:
    code = ~np.arange(256, dtype=np.uint8)  # the line carries the complement
    segment = (code >> 4 & 7).astype(np.int32)
    step = (code & 15).astype(np.int32)
    magnitude = ((step << 3) + _ULAW_BIAS << segment) - _ULAW_BIAS
    return np.where(code & 128, -magnitude, magnitude).astype(np.int16)


def _alaw_to_linear() -> Samples:
    code = np.arange(256, dtype=np.uint8) ^ 0x55  # the line inverts every other bit
    segment = (code >> 4 & 7).astype(np.int32)
    step = (code & 15).astype(np.int32)
    # Segments 0 and 1 share a step of 16; 8 is half a step, so a value decodes to its middle.
    magnitude = np.where(
        segment == 0, (step << 4) + 8, (step << 4) + 264 << np.maximum(segment - 1, 0)
    )
    return np.where(code & 128, magnitude, -magnitude).astype(np.int16)


def _every_sample() -> NDArray[np.int32]:
    """All 65536 samples, in the order of their bits read as uint16."""
    return np.arange(1 << 16, dtype=np.uint16).view(np.int16).astype(np.int32)


def _linear_to_ulaw() -> NDArray[np.uint8]:
    samples = _every_sample()
    magnitude = np.minimum(np.abs(samples), _ULAW_CLIP) + _ULAW_BIAS
    segment = np.floor(np.log2(magnitude)).astype(np.int32) - 7
    step = magnitude >> segment + 3 & 15
    sign = np.where(samples < 0, 128, 0)
    code: NDArray[np.uint8] = (~(sign | segment << 4 | step)).astype(np.uint8)
    return code


def _linear_to_alaw() -> NDArray[np.uint8]:
    samples = _every_sample()
    magnitude = np.where(samples < 0, ~samples, samples) >> 3  # 12 bits
    segment = np.maximum(np.floor(np.log2(np.maximum(magnitude, 1))).astype(np.int32) - 4, 0)
    step = magnitude >> np.maximum(segment, 1) & 15
    sign = np.where(samples < 0, 0, 128)
    code: NDArray[np.uint8] = ((sign | segment << 4 | step) ^ 0x55).astype(np.uint8)
    return code


_ULAW_TO_LINEAR = _ulaw_to_linear()
_ALAW_TO_LINEAR = _alaw_to_linear()
_LINEAR_TO_ULAW = _linear_to_ulaw()
_LINEAR_TO_ALAW = _linear_to_alaw()
