"""Our end of a call's sound by RTP: what a browser's line and a telephone's do alike.

Owns the codec's two streams and their reports, whole frames of what is said, and the one timer that
has the next thing done when it is due. Where packets come from and go to is the door's.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection

import numpy as np

from audio.frames import FRAME_MS, VOICE_HZ, Samples, samples_in
from voiceloop.doors.rtp.codecs import Encoder
from voiceloop.doors.rtp.packet import MalformedPacket
from voiceloop.doors.rtp.receive import OPUS_HZ, Decoder, RtpReceiver
from voiceloop.doors.rtp.rtcp import RtcpLine
from voiceloop.doors.rtp.send import RtpSender

# The next write goes out 20 ms before the one before has been played: over UDP no packet waits for
# another, so half of what a WebSocket needs will do.
LEAD_MS = 40.0
FRAME_SAMPLES = samples_in(FRAME_MS, VOICE_HZ)
FRAME_BYTES = 2 * FRAME_SAMPLES
FRAME_S = FRAME_MS / 1000.0


class RtpEnd(ABC):
    """A `SoundLine`, once `_begin` has named a codec."""

    lead_ms = LEAD_MS

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._rest = b""  # less than a frame that waits for more
        self._encoder: Encoder
        self._receiver: RtpReceiver
        self._sender: RtpSender
        self._rtcp: RtcpLine

    def _begin(
        self,
        codec: tuple[Encoder, Decoder],
        payload_type: int,
        clock_hz: int = OPUS_HZ,
        silent_types: Collection[int] = (),
    ) -> None:
        """Begin: from now on both ends send; as of `RtpReceiver`."""
        self._encoder, decoder = codec
        self._receiver = RtpReceiver(
            decoder, payload_type, clock_hz=clock_hz, silent_types=silent_types
        )
        # Its lower half, for SRTP counts the wraps that both ends have seen (RFC 3711, 3.3.1).
        sequence, stamp = secrets.randbits(15), secrets.randbits(32)
        self._sender = RtpSender(secrets.randbits(32), payload_type, sequence, stamp, clock_hz)
        self._rtcp = RtcpLine(self._sender, self._receiver, "voiceloop", self._clock())
        self._rest = b""

    def _stop(self) -> None:
        """Stop: nothing is due any more."""
        if self._timer is not None:
            self._timer.cancel()

    # --- the caller's sound ---

    @abstractmethod
    def _pass_on(self, samples: Samples) -> None:
        """Tell whoever is told of it."""

    def _hear(self, pieces: list[Samples]) -> None:
        for samples in pieces:
            self._pass_on(samples)

    def _read_report(self, data: bytes) -> bool:
        """Take in what the far end reports of the line; returns whether the packet was a report."""
        try:
            self._rtcp.read(data, self._clock())
        except MalformedPacket:
            return False
        return True

    # --- the agent's ---

    def play_delay_ms(self) -> None:
        """None: a packet that is out plays, unless its client says that it silenced it."""
        return None

    def send_sound(self, samples: bytes) -> None:
        """Send what is whole frames; the rest waits for more, or until silence is due."""
        self._rest += samples
        n_whole = len(self._rest) - len(self._rest) % FRAME_BYTES
        for start in range(0, n_whole, FRAME_BYTES):
            self._send_frame(np.frombuffer(self._rest[start : start + FRAME_BYTES], "<i2"))
        self._rest = self._rest[n_whole:]
        self._arm()

    def clear_sound(self) -> None:
        self._rest = b""

    @abstractmethod
    def _send_frame(self, samples: Samples) -> None: ...

    # --- time ---

    @property
    @abstractmethod
    def _is_live(self) -> bool: ...

    @property
    def _has_unread(self) -> bool:
        """Whether packets have come that wait for their turn on our loop."""
        return False

    @property
    @abstractmethod
    def _send_due_s(self) -> float:
        """Return when silence follows what was sent, because nothing else has; inf: not at all."""

    @property
    @abstractmethod
    def _lost_at_s(self) -> float:
        """Return when a far end of which nothing is heard is given up."""

    @abstractmethod
    def _send_due(self, now_s: float) -> None: ...

    @abstractmethod
    def _send_report(self, report: bytes) -> None: ...

    @abstractmethod
    def _lose(self) -> None: ...

    def _arm(self) -> None:
        """Have `_tick` called when the next thing is due."""
        if not self._is_live:
            return
        due_s = min(
            self._rtcp.due_s, self._receiver.due_s or math.inf, self._send_due_s, self._lost_at_s
        )
        if self._timer is None or due_s < self._timer.when():
            self._stop()
            self._timer = self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        timer, self._timer, now_s = self._timer, None, self._clock()
        late_s = 0.0 if timer is None else now_s - timer.when()
        if self._has_unread:
            late_s = max(0.0, late_s) + FRAME_S
        if late_s >= FRAME_S:
            self._receiver.excuse(late_s, now_s)
        self._hear(self._receiver.tick(now_s))
        if now_s >= self._send_due_s:
            self._send_due(now_s)
        if now_s >= self._rtcp.due_s:
            self._send_report(self._rtcp.write(now_s))
        if now_s >= self._lost_at_s:
            self._lose()
        else:
            self._arm()
