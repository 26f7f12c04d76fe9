"""The codecs of telephone lines, and how each is named in a session description.

Owns G.711 and G.722 as streams of 20 ms at 24 kHz, which is what a call has, and the table of what
a line may be offered. Opus is `audio.opus`; G.722 needs the package of that name.

Source: RFC 3551, 4.5 and 6; RFC 7587; ITU-T G.711 appendix I (the idea of its concealment).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from audio import codec
from audio.errors import AudioError
from audio.frames import FRAME_MS, VOICE_HZ, Samples, samples_in
from audio.opus import OpusDecoder, OpusEncoder, is_available
from audio.resample import Resampler
from voiceloop.doors.rtp.receive import OPUS_HZ, Decoder

LONGEST_PACKET_MS = 200.0  # RFC 3551, 4.2: what every receiver takes
PITCH_MS = (5.0, 15.0)  # of a voice: 66 to 200 Hz, and its octaves
FADE_MS = 60.0  # until a concealed loss is silence, as in G.711 appendix I


class Encoder(Protocol):
    """A codec's sending end: 20 ms at 24 kHz in, a packet out."""

    def encode(self, samples: Samples) -> bytes: ...


class Coding(Protocol):
    """Bytes to samples of the codec's own rate, and back; it may keep state."""

    def decode(self, data: bytes) -> Samples: ...

    def encode(self, samples: Samples) -> bytes: ...


class G711:
    """law: as of `audio.codec`."""

    def __init__(self, law: codec.Encoding) -> None:
        self._law: codec.Encoding = law

    def decode(self, data: bytes) -> Samples:
        return codec.decode(data, self._law)

    def encode(self, samples: Samples) -> bytes:
        return codec.encode(samples, self._law)


class G722:
    """64 kbit/s. Raises: ImportError."""

    def __init__(self) -> None:
        from G722 import G722 as Codec

        self._codec = Codec(16_000, 64_000)

    def decode(self, data: bytes) -> Samples:
        return np.array(self._codec.decode(data), np.int16)

    def encode(self, samples: Samples) -> bytes:
        return bytes(self._codec.encode(samples))


class LineEncoder:
    """The agent's sound for a line of this rate."""

    def __init__(self, coding: Coding, rate_hz: int) -> None:
        self._coding = coding
        self._resampler = Resampler(VOICE_HZ, rate_hz)
        # What the filter withholds comes first as silence, so that every packet has its length.
        self._rest = np.zeros(round(rate_hz * self._resampler.delay_ms / 1000.0), np.int16)

    def encode(self, samples: Samples) -> bytes:
        """The packet of so many samples, behind by the filter's delay."""
        pushed = np.concatenate([self._rest, self._resampler.push(samples)])
        n_out = len(samples) * self._resampler.out_hz // VOICE_HZ
        self._rest = pushed[n_out:]
        return self._coding.encode(pushed[:n_out])


class LineDecoder:
    """The caller's sound of a line of this rate. As `rtp.receive.Decoder`; there is no FEC."""

    def __init__(self, coding: Coding, rate_hz: int) -> None:
        self._coding = coding
        self._rate_hz = rate_hz
        self._resampler = Resampler(rate_hz, VOICE_HZ)
        self._rest = np.zeros(round(VOICE_HZ * self._resampler.delay_ms / 1000.0), np.int16)
        self._last = np.zeros(samples_in(40.0, rate_hz), np.int16)
        self._n_made = 0  # samples concealed since a packet came

    def decode(self, packet: bytes) -> Samples:
        """Raises: AudioError where it holds nothing, or more than a packet may."""
        if not 0 < len(packet) <= LONGEST_PACKET_MS * 8:  # 64 kbit/s, all of them
            raise AudioError(f"expected 1 to {LONGEST_PACKET_MS * 8:g} bytes, found {len(packet)}")
        self._n_made = 0
        return self._push(self._coding.decode(packet))

    def recover(self, next_packet: bytes, n_samples: int = 0) -> Samples:
        return self.conceal(n_samples or samples_in(FRAME_MS, VOICE_HZ))

    def conceal(self, n_samples: int) -> Samples:
        """The last period of the voice again and again, fading."""
        n_made = n_samples * self._rate_hz // VOICE_HZ
        period = self._period()
        places = self._n_made + np.arange(n_made)
        fade = np.clip(1.0 - places / samples_in(FADE_MS, self._rate_hz), 0.0, 1.0)
        made = self._last[len(self._last) - period + places % period] * fade
        self._n_made += n_made
        return self._push(made.astype(np.int16), is_heard=False)

    def _period(self) -> int:
        """The lag at which the last 20 ms are most like what was before them."""
        shortest, longest = (samples_in(one, self._rate_hz) for one in PITCH_MS)
        tail = self._last.astype(np.float64)
        n = samples_in(FRAME_MS, self._rate_hz)
        likeness = [
            float(tail[-n:] @ tail[-n - lag : -lag])
            / (1.0 + float(np.linalg.norm(tail[-n - lag : -lag])))
            for lag in range(shortest, longest)
        ]
        return shortest + int(np.argmax(likeness))

    def _push(self, samples: Samples, *, is_heard: bool = True) -> Samples:
        if is_heard:
            self._last = np.concatenate([self._last, samples])[-len(self._last) :]
        pushed: NDArray[np.int16] = np.concatenate([self._rest, self._resampler.push(samples)])
        n_out = len(samples) * VOICE_HZ // self._rate_hz
        self._rest = pushed[n_out:]
        return pushed[:n_out]


@dataclass(frozen=True, slots=True)
class Codec:
    """payload_type: the one that RFC 3551 gives it, None where each call has its own."""

    name: str
    payload_type: int | None
    clock_hz: int
    fmtp: str
    pair: Callable[[], tuple[Encoder, Decoder]]

    @property
    def rtpmap(self) -> str:
        return f"{self.name}/{self.clock_hz}" + ("/2" if self.name == "opus" else "")


def _line(coding: Callable[[], Coding], rate_hz: int) -> Callable[[], tuple[Encoder, Decoder]]:
    def pair() -> tuple[Encoder, Decoder]:
        return LineEncoder(coding(), rate_hz), LineDecoder(coding(), rate_hz)

    return pair


# As the encoder writes; FEC lets the far end fill a hole. Browsers send mono of speech anyway.
OPUS_FMTP = "minptime=10;useinbandfec=1;stereo=0;maxaveragebitrate=32000"
# RFC 3551, 4.5.2: the clock of G.722 is 8 kHz although its sound has 16, an error that stayed.
CODECS = {  # the best first: a call has the first that its far end takes
    "opus": Codec("opus", None, OPUS_HZ, OPUS_FMTP, lambda: (OpusEncoder(), OpusDecoder())),
    "g722": Codec("G722", 9, 8_000, "", _line(G722, 16_000)),
    "pcma": Codec("PCMA", 8, 8_000, "", _line(lambda: G711("pcma"), 8_000)),
    "pcmu": Codec("PCMU", 0, 8_000, "", _line(lambda: G711("pcmu"), 8_000)),
}


def codecs_here() -> list[Codec]:
    """Return the codecs that this machine has the libraries of."""
    lacks = set() if is_available() else {"opus"}
    lacks |= set() if find_spec("G722") else {"g722"}
    return [codec for name, codec in CODECS.items() if name not in lacks]
