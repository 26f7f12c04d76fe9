"""Opus, for doors that carry sound in packets: one encoder or decoder for each direction of a call.

Mono int16 in and out. A binding of libopus by ctypes; 20 ms of sound take some 20 us to decode and
0.2 ms to encode, so both run where the packets arrive. The library comes with an optional package;
where that is missing, the system's is taken.

Source: RFC 6716; opus.h and opus_defines.h of libopus 1.x (BSD-3-Clause).
"""

from __future__ import annotations

import ctypes
from ctypes.util import find_library
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from .errors import AudioError, MissingExtra
from .frames import FRAME_MS, VOICE_HZ, Samples, samples_in

APPLICATION_VOIP = 2048
SIGNAL_VOICE = 3001
SET_BITRATE, SET_COMPLEXITY, SET_INBAND_FEC = 4002, 4010, 4012
SET_PACKET_LOSS_PERC, SET_DTX, SET_SIGNAL = 4014, 4016, 4024
BITRATE = 32_000  # bit/s: at 24 kHz mono speech has no artefact left that a listener names
COMPLEXITY = 5  # 0.17 ms for 20 ms of sound; 10 takes twice that and no listener hears it
FIRST_LOSS_PERCENT = 5  # libopus writes no FEC at 0; what the peer reports replaces it

LONGEST_MS = 120  # RFC 6716, 2.1.4: the longest packet
MAX_PACKET = 1275 * 6 + 7  # bytes, RFC 6716, 3.2 and appendix B: six frames of the longest
DTX_BYTES = 2  # libopus writes no more than this where it leaves a silence out


@lru_cache(maxsize=1)
def is_available() -> bool:
    """Whether libopus is there, and runs here."""
    try:
        _library()
    except MissingExtra:
        return False
    return True


class OpusEncoder:
    """One direction of a call, 20 ms at a time, with in-band FEC and DTX.

    rate_hz: of the samples; libopus takes 8000, 12000, 16000, 24000 or 48000.

    Raises: MissingExtra if there is no libopus; AudioError for another rate.
    """

    def __init__(self, rate_hz: int = VOICE_HZ) -> None:
        library = _library()
        error = ctypes.c_int()
        self._state = library.opus_encoder_create(rate_hz, 1, APPLICATION_VOIP, ctypes.byref(error))
        _check(error.value, f"expected a rate of Opus, found {rate_hz} Hz")
        finalize(self, library.opus_encoder_destroy, self._state)
        self._library = library
        self.n_samples = samples_in(FRAME_MS, rate_hz)
        self._packet = ctypes.create_string_buffer(MAX_PACKET)
        for request, value in (
            (SET_BITRATE, BITRATE),
            (SET_COMPLEXITY, COMPLEXITY),
            (SET_SIGNAL, SIGNAL_VOICE),
            (SET_INBAND_FEC, 1),
            (SET_DTX, 1),
        ):
            self._set(request, value)
        self.expect_loss(FIRST_LOSS_PERCENT)

    def expect_loss(self, percent: int) -> None:
        """Spend as much on FEC as this loss asks for, 0 to 100: what the peer last reported."""
        self._set(SET_PACKET_LOSS_PERC, min(max(percent, 0), 100))

    def encode(self, samples: Samples) -> bytes:
        """The packet of one frame, int16 [n_samples].

        Of DTX_BYTES or less, it says that silence goes on, and need not be sent.

        Raises: AudioError for another length.
        """
        if len(samples) != self.n_samples:
            raise AudioError(f"expected {self.n_samples} samples, found {len(samples)}")
        frame = np.ascontiguousarray(samples, dtype=np.int16)
        n_bytes = self._library.opus_encode(
            self._state, frame.ctypes.data, self.n_samples, self._packet, MAX_PACKET
        )
        _check(n_bytes, "expected a packet of the encoder, found an error")
        return self._packet.raw[:n_bytes]

    def _set(self, request: int, value: int) -> None:
        result = self._library.opus_encoder_ctl(self._state, request, ctypes.c_int(value))
        _check(result, f"expected libopus to take {value} for {request}, found that it did not")


class OpusDecoder:
    """The other direction. Each call returns int16 samples of rate_hz, mono whatever came.

    Raises: as `OpusEncoder`.
    """

    def __init__(self, rate_hz: int = VOICE_HZ) -> None:
        library = _library()
        error = ctypes.c_int()
        self._state = library.opus_decoder_create(rate_hz, 1, ctypes.byref(error))
        _check(error.value, f"expected a rate of Opus, found {rate_hz} Hz")
        finalize(self, library.opus_decoder_destroy, self._state)
        self._library = library
        self.n_samples = samples_in(FRAME_MS, rate_hz)
        self._samples = np.zeros(samples_in(LONGEST_MS, rate_hz), np.int16)

    def decode(self, packet: bytes) -> Samples:
        """Return what a packet holds: 2.5 to 120 ms. Raises: AudioError where it is no Opus."""
        if not packet:  # libopus would conceal a loss
            raise AudioError("expected a packet of Opus, found 0 bytes")
        return self._decode(packet, len(self._samples), False)

    def recover(self, next_packet: bytes, n_samples: int = 0) -> Samples:
        """The n_samples before next_packet, by its FEC as far as it has any, else concealed.

        n_samples: 0 for one frame; a multiple of 2.5 ms, of at most 120 ms. next_packet is to be
        decoded afterwards.

        Raises: AudioError where it is no Opus, or n_samples is something else.
        """
        if not next_packet:
            raise AudioError("expected a packet of Opus, found 0 bytes")
        return self._decode(next_packet, n_samples or self.n_samples, True)

    def conceal(self, n_samples: int) -> Samples:
        """Sound for a loss, made of what came before and fading; n_samples as of `recover`."""
        return self._decode(None, n_samples, False)

    def _decode(self, packet: bytes | None, n_samples: int, has_fec: bool) -> Samples:
        if not 0 < n_samples <= len(self._samples):
            raise AudioError(f"expected 1 to {len(self._samples)} samples, found {n_samples}")
        n_decoded = self._library.opus_decode(
            self._state,
            packet,
            0 if packet is None else len(packet),
            self._samples.ctypes.data,
            n_samples,
            has_fec,
        )
        _check(n_decoded, "expected a packet of Opus, found something else")
        return self._samples[:n_decoded].copy()


def _check(result: int, message: str) -> None:
    if result < 0:
        raise AudioError(f"{message} (libopus: {result})")


@lru_cache(maxsize=1)
def _library() -> Any:
    """libopus with its signatures. Raises: MissingExtra."""
    path = _bundled() or find_library("opus")
    try:
        library = ctypes.CDLL(path) if path else None
    except OSError:
        library = None
    if library is None:
        raise MissingExtra("opuslib-next-bundled", "Opus", "webrtc")
    pointer, number, int32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int32
    error = ctypes.POINTER(number)
    for name, result, arguments in (
        ("opus_encoder_create", pointer, [int32, number, number, error]),
        ("opus_encoder_destroy", None, [pointer]),
        # The third argument is variadic, and stays out: arm64 of Apple passes those differently.
        ("opus_encoder_ctl", number, [pointer, number]),
        ("opus_encode", int32, [pointer, pointer, number, pointer, int32]),
        ("opus_decoder_create", pointer, [int32, number, error]),
        ("opus_decoder_destroy", None, [pointer]),
        ("opus_decode", number, [pointer, ctypes.c_char_p, int32, pointer, number, number]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _bundled() -> str | None:
    """The library in the package's wheel; its Python code is not imported."""
    package = find_spec("opuslib_next")
    for folder in (package.submodule_search_locations or []) if package else []:
        for path in sorted((Path(folder) / "_native").glob("*opus*")):
            if path.suffix in {".so", ".dylib", ".dll"}:
                return str(path)
    return None
