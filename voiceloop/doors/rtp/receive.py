"""A caller's packets made samples, in order and without holes.

A listener is no loudspeaker, so there is no playout buffer: what comes in order passes at once. A
hole waits for twice the jitter, then the next packet's FEC fills it, or concealment. While no
packets come, silence is written by the clock: who counts samples knows how long it has been quiet.

Samples out are time in. Sound that comes after silence was written in its place is passed on late,
for its words matter more than its time, and the quiet frames that follow pay for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import numpy as np

from audio.errors import AudioError
from audio.frames import FRAME_MS, VOICE_HZ, Samples, rms_dbfs, samples_in
from voiceloop.admission.bucket import Bucket
from voiceloop.doors.rtp.packet import RtpPacket, signed
from voiceloop.doors.rtp.reception import Reception
from voiceloop.doors.rtp.rtcp import ReportBlock

OPUS_HZ = 48_000  # RFC 7587: the clock of Opus, whatever the rate of its samples
FRAME = samples_in(FRAME_MS, VOICE_HZ)
FRAME_S = FRAME_MS / 1000.0
STEP = samples_in(2.5, VOICE_HZ)  # libopus conceals whole multiples of its shortest frame
LONGEST_GAP_S = 0.06  # three frames: longer without packets is silence, and so is all of a mute
# Half a frame later than the next packet would be: one that still comes is not too late.
SILENT_AFTER_S = LONGEST_GAP_S + FRAME_S / 2
MAX_WAITING = 32  # packets behind a hole; 60 ms of the shortest are 24
# Late sound at once: what a line that stalled brings. More of it, or faster than the clock over
# time, is a flood; a sender's clock may be 5 % off.
LONGEST_BURST_S = 2.0
LONGEST_BURST = round(LONGEST_BURST_S * VOICE_HZ)
FASTEST = 1.05
# Below this a frame may be left out unheard; speech and its fricatives are above.
QUIET_DBFS = -55.0


class Decoder(Protocol):
    """A codec's receiving end, as `audio.opus.OpusDecoder`. Each method raises AudioError."""

    def decode(self, packet: bytes) -> Samples: ...

    def recover(self, next_packet: bytes, n_samples: int = 0) -> Samples: ...

    def conceal(self, n_samples: int) -> Samples: ...


class RtpReceiver:
    """One caller's stream of one payload type, as int16 samples at 24 kHz.

    clock_hz: of the timestamps. silent_types: what comes in the same stream and holds no sound, as
    digits and comfort noise; silence is written in its place. now_s: of one monotonic clock, for
    all calls. Call `tick` when `due_s` has come.
    """

    def __init__(
        self,
        decoder: Decoder,
        payload_type: int,
        *,
        clock_hz: int = OPUS_HZ,
        silent_types: Collection[int] = (),
    ) -> None:
        self._decoder = decoder
        self._payload_type = payload_type
        self._clock_hz = clock_hz
        self._silent_types = frozenset(silent_types)
        self.n_concealed = 0  # samples made for lost packets, FEC or not
        self._reception: Reception | None = None
        self._now_s = 0.0
        self._budget = Bucket(LONGEST_BURST_S, FASTEST, lambda: self._now_s)
        self._waiting: dict[int, RtpPacket] = {}
        self._release_s = 0.0  # when the packets behind a hole wait no longer
        self._next = 0  # number of the packet that is to come
        self._timestamp = 0  # of the first sample that has not been written
        self._arrived_s = 0.0  # when a packet last came
        self._n_silent = 0  # frames of silence written since then
        self._n_owed = 0  # samples written beyond the sender's time, to be left out again

    @property
    def due_s(self) -> float | None:
        """Return when `tick` has something to write; None before the first packet."""
        if self._reception is None:
            return None
        silence_s = max(SILENT_AFTER_S, (self._n_silent + 1.5) * FRAME_S)
        silence_s += self._arrived_s
        return min(self._release_s, silence_s) if self._waiting else silence_s

    @property
    def jitter_ms(self) -> float:
        """As of RFC 3550; 0 before the first packet."""
        return 0.0 if self._reception is None else self._reception.jitter_ms

    def report(self) -> ReportBlock | None:
        """Return what the sender is to be told of its packets; None before the first."""
        return None if self._reception is None else self._reception.report()

    def packet(self, packet: RtpPacket, now_s: float) -> list[Samples]:
        """Return what a packet lets be heard: nothing where it is a stranger, late or behind a
        hole.
        """
        is_silent = packet.payload_type in self._silent_types
        if packet.payload_type != self._payload_type and not is_silent:
            return []
        self._now_s = max(self._now_s, now_s)
        if self._reception is None:
            self._reception = Reception(packet, self._now_s, self._clock_hz)
            self._timestamp = packet.timestamp
        number = self._reception.number(packet, self._now_s)
        if number is None or number < self._next or number in self._waiting:
            return []
        self._arrived_s, self._n_silent = self._now_s, 0
        self._waiting[number] = packet
        written = self._play_from(self._next)
        if written or len(self._waiting) == 1:  # another hole, or the first
            self._wait()
        if len(self._waiting) > MAX_WAITING:
            self._release_s = self._now_s
        return written + self._release()

    def excuse(self, late_s: float, now_s: float) -> None:
        """Our event loop stood still for so long until now: packets that came meanwhile are still
        to be read, and no silence.
        """
        self._arrived_s = min(now_s, self._arrived_s + late_s)
        self._release_s += late_s

    def tick(self, now_s: float) -> list[Samples]:
        """Return what the clock lets be heard: packets whose hole stays, silence where none
        come.
        """
        self._now_s = max(self._now_s, now_s)
        if self._reception is None:
            return []
        written = self._release()
        quiet_s = self._now_s - self._arrived_s + 1e-6
        if quiet_s < SILENT_AFTER_S:
            return written
        n_frames = int(quiet_s / FRAME_S - 0.5) - self._n_silent
        self._n_silent += n_frames
        return written + self._write_silence(n_frames * FRAME)

    def _wait(self) -> None:
        jitter_s = self.jitter_ms / 1000.0
        self._release_s = self._now_s + min(LONGEST_GAP_S, 2.0 * jitter_s)

    def _release(self) -> list[Samples]:
        """Return what waits behind a hole that has been open for long enough."""
        written: list[Samples] = []
        while self._waiting and self._now_s >= self._release_s:
            written += self._play_from(min(self._waiting))
            self._wait()
        return written

    def _play_from(self, number: int) -> list[Samples]:
        """The waiting packets from this one on, as far as they follow each other."""
        written: list[Samples] = []
        while (packet := self._waiting.pop(number, None)) is not None:
            if not self._budget.is_empty:
                written += self._play(packet, is_loss=number > self._next)
            self._next = number = number + 1
        return written

    def _play(self, packet: RtpPacket, is_loss: bool) -> list[Samples]:
        """The packet's samples, and before them those of the hole that it ends."""
        if packet.payload_type in self._silent_types:
            return []  # the next sound's timestamp tells how long it lasted
        ahead = signed(packet.timestamp - self._timestamp, 32)
        n_missing = ahead * VOICE_HZ // self._clock_hz
        if abs(n_missing) > LONGEST_BURST:  # its clock jumped: it goes on from here
            n_missing = 0
        written: list[Samples] = []
        if n_missing > 0 and is_loss:
            written += self._fill(n_missing, packet.payload)
        elif n_missing > 0:  # the sender left a silence out
            written += self._write_silence(n_missing)
        else:
            self._n_owed = min(self._n_owed - n_missing, LONGEST_BURST)
        try:
            samples = self._decoder.decode(packet.payload)
        except AudioError:
            samples = self._decoder.conceal(FRAME)
            self.n_concealed += FRAME
        self._timestamp = packet.timestamp + self._units(len(samples)) & 0xFFFFFFFF
        self._budget.take(len(samples) / VOICE_HZ)
        if self._n_owed >= len(samples) and rms_dbfs(samples) < QUIET_DBFS:
            self._n_owed -= len(samples)
        else:
            written.append(samples)
        return written

    def _fill(self, n_samples: int, next_payload: bytes) -> list[Samples]:
        """Return what lost packets may have held: the last frame by FEC, the first two by
        concealment.
        """
        self.n_concealed += n_samples
        self._budget.take(n_samples / VOICE_HZ)
        n_last = min(n_samples // STEP * STEP, FRAME)
        n_first = min((n_samples - n_last) // STEP * STEP, 2 * FRAME)
        written = [self._decoder.conceal(n_first)] if n_first else []
        written.append(np.zeros(n_samples - n_first - n_last, np.int16))
        try:
            written += [self._decoder.recover(next_payload, n_last)] if n_last else []
        except AudioError:
            written.append(self._decoder.conceal(n_last))
        return written

    def _write_silence(self, n_samples: int) -> list[Samples]:
        n_samples = min(n_samples, LONGEST_BURST)
        self._timestamp = self._timestamp + self._units(n_samples) & 0xFFFFFFFF
        n_left_out = min(n_samples, self._n_owed)
        self._n_owed -= n_left_out
        n_written = n_samples - n_left_out
        self._budget.take(n_written / VOICE_HZ)
        return [np.zeros(n_written, np.int16)] if n_written else []

    def _units(self, n_samples: int) -> int:
        """Return the length of so many samples in units of a timestamp."""
        return n_samples * self._clock_hz // VOICE_HZ
