"""The sound of a call by SIP: its two ports, its codec, its digits, and when it is held.

Owns where packets go to: to the host that the far end's description names, and only once that is
known to be the far end. What a packet brings is passed on where it arrives: no threads, no tasks.
The sockets are read as the loop finds them readable. A transport of the loop's would be there some
rounds of the loop later only, and so would the answer to the call.
"""

from __future__ import annotations

import logging
import math
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

import numpy as np

from audio.frames import Samples
from voiceloop.call.connection import LINE_BROKE
from voiceloop.doors.keypad import tones
from voiceloop.doors.rtp.digits import DigitReader, DigitWriter
from voiceloop.doors.rtp.end import FRAME_BYTES, FRAME_S, FRAME_SAMPLES, RtpEnd
from voiceloop.doors.rtp.packet import MalformedPacket, RtpPacket
from voiceloop.doors.rtp.tones import ToneListener
from voiceloop.doors.sip.description import COMFORT_NOISE, Described
from voiceloop.doors.sip.endpoint import Address
from voiceloop.errors import Overloaded

log = logging.getLogger(__name__)

# Without a packet for so long the far end has gone without a word. A held call has none to send.
LOST_S = 20.0
# While the agent is silent: what keeps a border controller's hole open, and its own clock quiet.
QUIET_EVERY_S = 0.4
QUIET_LEVEL = bytes([70])  # of comfort noise, -70 dBov (RFC 3389, 3.1): the line does not seem dead
RECEIVE_BUFFER_BYTES = 1 << 18
MOST_PACKET_BYTES = 1 << 16  # of a datagram
PORTS = 20_000, 20_400  # above those that Asterisk takes, below those that Linux gives out
TYPE_OF_SERVICE = 46 << 2  # "expedited forwarding" (RFC 3246), as telephones send


class MediaState(Enum):
    AWAITED = "awaited"  # nothing is agreed
    AGREED = "agreed"  # the far end may send; nothing is heard or said yet
    LIVE = "live"
    CLOSED = "closed"  # for good


class FarEnd(Protocol):
    """An object that is told what the line brings."""

    def hear(self, samples: bytes) -> None: ...

    def press(self, key: str, *, is_sound: bool) -> None: ...

    def end(self, code: int, how: str) -> None: ...


class Ports:
    """The UDP ports of calls, in pairs, which a firewall can be told of."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._free = list(range(*PORTS, 2))
        random.shuffle(self._free)

    def take(self) -> tuple[socket.socket, socket.socket]:
        """A pair of bound sockets. Raises: Overloaded: none is free."""
        for _ in range(len(self._free)):
            port = self._free.pop(0)
            first = None
            try:
                first = self._bind(port)
                return first, self._bind(port + 1)
            except OSError:  # somebody else has it
                if first is not None:
                    first.close()
                self.give_back(port)
        raise Overloaded(f"No pair of UDP ports is free in {PORTS}.")

    def give_back(self, port: int) -> None:
        self._free.append(port)

    def _bind(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_DGRAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
            if family == socket.AF_INET:
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, TYPE_OF_SERVICE)
            sock.bind((self._host, port))
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
        return sock


class Media(RtpEnd):
    """`open`, `agree`, `start`, then `close`. It is a `SoundLine`.

    signals: the host that the messages come from. is_trusted: whether sound may go to this host, or
    else to the one that signals: behind NAT many name an address that only they reach.
    """

    def __init__(
        self, ports: Ports, far: FarEnd, signals: str, is_trusted: Callable[[str], bool]
    ) -> None:
        super().__init__()
        self._ports = ports
        self._far = far
        self.signals = signals
        self._is_trusted = is_trusted
        self._state = MediaState.AWAITED
        self._sockets: tuple[socket.socket, ...] = ()
        self.port = 0
        self._agreed: Described
        self._digits = DigitReader()
        self._keys = DigitWriter()
        self._keys_due_s = 0.0
        self._tones: ToneListener | None = None
        self._to: Address  # as agreed, or where the first packet came from
        self._is_latched = False
        self._quiet_s = 0.0  # when the last packet of silence went
        self._heard_s = self._clock()

    # --- life ---

    def open(self) -> None:
        """Take the ports. Raises: Overloaded."""
        self._sockets = first, second = self._ports.take()
        self.port = first.getsockname()[1]
        self._loop.add_reader(first, self._read, first, self._receive)
        self._loop.add_reader(second, self._read, second, self._receive_report)

    def agree(self, agreed: Described) -> None:
        """Set the codec of both ends from now on, and whether the far end listens."""
        was = None if self._state is MediaState.AWAITED else self._agreed
        if self._state is MediaState.AWAITED:
            self._state = MediaState.AGREED
        self._agreed = agreed
        self._heard_s = self._clock()
        is_same_codec = was is not None and (
            (was.codec.name, was.payload_type, was.events)
            == (agreed.codec.name, agreed.payload_type, agreed.events)
        )
        if not is_same_codec:
            codec = agreed.codec
            silent = {COMFORT_NOISE} | ({agreed.events} if agreed.events is not None else set())
            self._begin(codec.pair(), agreed.payload_type, codec.clock_hz, silent)
            self._keys = DigitWriter(agreed.events_hz)
            self._tones = ToneListener() if agreed.events is None else None
        if was is None or (was.host, was.port) != (agreed.host, agreed.port):
            self._is_latched = False
            host = agreed.host if self._is_trusted(agreed.host) else self.signals
            self._to = host, agreed.port
        self._arm()

    def start(self) -> None:
        """The call has begun."""
        if self._state is MediaState.AGREED:
            self._state = MediaState.LIVE
            self._heard_s = self._clock()
            self._arm()

    def close(self) -> None:
        """Give the ports back; idempotent."""
        self._state = MediaState.CLOSED
        self._stop()
        sockets, self._sockets = self._sockets, ()
        for sock in sockets:
            self._loop.remove_reader(sock)
            sock.close()
        if sockets:
            self._ports.give_back(self.port)

    # --- the caller's sound ---

    @staticmethod
    def _read(sock: socket.socket, receive: Callable[[bytes, Address], None]) -> None:
        try:
            data, address = sock.recvfrom(MOST_PACKET_BYTES)
        except OSError:  # it was not readable after all, or nobody is at a port we have sent to
            return
        receive(data, (address[0], address[1]))

    def _receive(self, data: bytes, address: Address) -> None:
        if not self._is_open:
            return
        if address[0] not in (self._agreed.host, self.signals):
            return  # anybody may send to a port that is open
        if len(data) > 1 and 192 <= data[1] < 224:  # RFC 5761, 4: a report on the same port
            self._receive_report(data, address)
            return
        try:
            packet = RtpPacket.parse(data)
        except MalformedPacket:
            return
        if not self._is_latched:  # back to where it comes from: by another port behind NAT
            self._is_latched, self._to = True, address
        self._heard_s = self._clock()
        if not self._is_live:
            return
        if packet.payload_type == self._agreed.events:
            if (key := self._digits.read(packet)) is not None:
                self._far.press(key, is_sound=False)
        if not self._agreed.is_held:  # else it is the exchange's music
            self._hear(self._receiver.packet(packet, self._heard_s))
        self._arm()

    def _receive_report(self, data: bytes, address: Address) -> None:
        if not self._is_live or address[0] not in (self._agreed.host, self.signals):
            return
        if self._read_report(data):
            self._heard_s = self._clock()  # a telephone that leaves silence out still reports

    def _pass_on(self, samples: Samples) -> None:
        if self._tones is not None:
            for key in self._tones.hear(samples):
                self._far.press(key, is_sound=True)
        self._far.hear(samples.astype("<i2", copy=False).tobytes())

    def has_other_digits(self) -> None:
        """Digits came by another way: none is looked for in the sound."""
        self._tones = None

    # --- the agent's ---

    def send_keys(self, keys: str) -> None:
        """Press these keys; the agent's sound waits for none of them. Raises: ValueError."""
        if self._agreed.events is not None:
            if self._keys.is_idle:
                self._keys_due_s = self._clock()
            self._keys.put(keys)
            self._arm()
        else:
            self.send_sound(tones(keys))

    def _send_frame(self, samples: Samples) -> None:
        if self._may_send and self._keys.is_idle:
            payload = self._encoder.encode(samples)
            packet = self._sender.packet(payload, FRAME_SAMPLES, self._clock())
            self._write(packet)

    def _send_key(self) -> None:
        due = self._keys.next()
        if due is not None:
            assert self._agreed.events is not None
            self._write(
                self._sender.event(
                    due.payload, self._agreed.events, self._clock(), is_first=due.is_first
                )
            )
        self._sender.skip(FRAME_SAMPLES)

    def _send_silence(self) -> None:
        """The rest of a reply's last frame, or that silence goes on."""
        now_s = self._quiet_s = self._clock()
        if self._is_sparse and self._sender.due_s is not None:  # its stamps tell of the pause
            self._sender.skip(int(max(0.0, now_s - self._sender.due_s) / FRAME_S) * FRAME_SAMPLES)
        if self._rest or not self._agreed.has_noise:
            rest, self._rest = self._rest, b""
            frame = rest + bytes(FRAME_BYTES - len(rest))
            self._send_frame(np.frombuffer(frame, "<i2"))
        else:
            packet = self._sender.packet(QUIET_LEVEL, FRAME_SAMPLES, now_s, COMFORT_NOISE)
            self._write(packet)

    def _write(self, packet: RtpPacket) -> None:
        if self._may_send:
            _send(self._sockets[0], packet.serialize(), self._to)

    @property
    def _is_open(self) -> bool:
        return self._state in (MediaState.AGREED, MediaState.LIVE)

    @property
    def _may_send(self) -> bool:
        """Whether the far end listens, and is known to be it."""
        return self._is_open and not self._agreed.is_held

    # --- time ---

    @property
    def _is_sparse(self) -> bool:
        """Whether the far end knows that a pause in the packets is silence."""
        return self._agreed.has_noise or self._agreed.codec.name == "opus"

    @property
    def _is_live(self) -> bool:
        return self._state is MediaState.LIVE

    @property
    def _send_due_s(self) -> float:
        """Return when a packet is due: of a key, else of silence."""
        if not self._keys.is_idle:
            return self._keys_due_s
        if not self._may_send:
            return math.inf
        due_s = self._sender.due_s or 0.0
        if due_s > self._quiet_s + FRAME_S or self._rest:  # sound went last: more may come late
            return due_s + FRAME_S
        return max(due_s, self._quiet_s + QUIET_EVERY_S) if self._is_sparse else due_s

    def _send_due(self, now_s: float) -> None:
        if self._keys.is_idle:
            self._send_silence()
        else:
            self._send_key()
            self._keys_due_s = max(self._keys_due_s + FRAME_S, now_s)

    def _send_report(self, report: bytes) -> None:
        if self._may_send:
            is_one = self._agreed.rtcp_port == self._agreed.port
            at = self._to if is_one else (self._to[0], self._agreed.rtcp_port)
            _send(self._sockets[0 if is_one else 1], report, at)

    @property
    def _lost_at_s(self) -> float:
        """Return when a far end that has stopped sending is given up; a held one may send
        nothing.
        """
        is_silent = self._agreed.is_held or self._agreed.direction == "recvonly"
        return math.inf if is_silent else self._heard_s + LOST_S

    def _lose(self) -> None:
        self._far.end(LINE_BROKE, f"the line broke: no sound of the far end for {LOST_S:g} s")


def _send(sock: socket.socket, packet: bytes, to: Address) -> None:
    with suppress(OSError):  # there is no room, or no way: what is sent later is too late
        sock.sendto(packet, to)
