"""One WebRTC peer: its sound, its events, and how it leaves.

Owns the call's ends of DTLS and SCTP, which are aiortc's, and of its sound, which is ours
(`doors/rtp/`): aiortc's own media path would buffer the caller by 50 ms and take three times the
CPU. What a packet brings is passed on where it arrives: no threads, no tasks of ours.

Source: RFC 8827 (who is believed: the fingerprint in the offer), RFC 7675 (consent).
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from aiortc import rtcsctptransport
from aiortc.rtcdatachannel import RTCDataChannel
from aiortc.rtcdtlstransport import (
    RTCCertificate,
    RTCDtlsFingerprint,
    RTCDtlsParameters,
    RTCDtlsTransport,
)
from aiortc.rtcsctptransport import RTCSctpCapabilities, RTCSctpTransport

from audio.frames import VOICE_HZ, Samples
from audio.opus import DTX_BYTES, FIRST_LOSS_PERCENT, OpusDecoder, OpusEncoder
from voiceloop.call.connection import HUNG_UP, LINE_BROKE, Disconnected
from voiceloop.doors.rtp.end import FRAME_BYTES, FRAME_S, FRAME_SAMPLES, RtpEnd
from voiceloop.doors.rtp.packet import MalformedPacket, RtpPacket
from voiceloop.doors.webrtc.mux import IceLine, Mux
from voiceloop.doors.webrtc.offer import Address, LocalEnd, Offer, answer

log = logging.getLogger(__name__)

CHANNEL = "oai-events"
CONSENT_S = 30.0  # RFC 7675, 5.1
# Of events that the peer has not taken. It is half of what the writer lets wait itself.
MAX_BUFFERED_BYTES = 1024 * 1024
MAX_STREAMS = 16  # of SCTP, one for each data channel: a peer needs one
# 1280 bytes, the least that IPv6 carries, less IP, UDP, DTLS and SCTP: where less goes through than
# a peer believes, a larger packet is lost each time it is sent again.
rtcsctptransport.USERDATA_MAX_LENGTH = 1100

# What of aiortc is not its public interface, and would go wrong without a word in another version.
for _owner, _name in (
    (RTCDtlsTransport, "_handle_rtp_data"),
    (RTCDtlsTransport, "_handle_rtcp_data"),
    (RTCDtlsTransport, "_set_role"),
    (RTCSctpTransport, "_handle_data"),
    (RTCSctpTransport, "_receive_data_chunk"),
):
    if not hasattr(_owner, _name):
        raise ImportError(f"expected aiortc 1.16 or later below 2, found one without {_name}")


class PeerState(Enum):
    AWAITED = "awaited"
    LIVE = "live"
    CLOSED = "closed"  # for good


class FarEnd(Protocol):
    """An object that is told what the peer does."""

    def hear(self, samples: bytes) -> None: ...

    def take(self, event: str | bytes) -> None: ...

    def end(self, code: int, how: str) -> None: ...


class SoundTransport(RTCDtlsTransport):  # type: ignore[misc]
    """aiortc's DTLS, whose sound is ours: decrypted packets are given to `peer`."""

    def __init__(self, line: IceLine, certificate: RTCCertificate, peer: Peer) -> None:
        super().__init__(line, [certificate])
        self._line = line
        self._peer = peer

    async def _handle_rtp_data(self, data: bytes, arrival_time_ms: int) -> None:
        self._peer.receive_sound(data)

    async def _handle_rtcp_data(self, data: bytes) -> None:
        self._peer.receive_report(data)

    def send_sound(self, data: bytes) -> None:
        if self.state == "connected":
            self._line.send(self._tx_srtp.protect(data))

    def send_report(self, data: bytes) -> None:
        if self.state == "connected":
            self._line.send(self._tx_srtp.protect_rtcp(data))


class BoundedSctp(RTCSctpTransport):  # type: ignore[misc]
    """aiortc's SCTP, which tells a peer how much it may send, and does not hold it to that."""

    async def _handle_data(self, data: bytes) -> None:
        try:
            await super()._handle_data(data)
        except Exception as error:  # aiortc asserts what a peer may break: that ends its call
            if not isinstance(error, ConnectionError):
                log.info("a WebRTC peer broke the rules of SCTP (%s)", type(error).__name__)
            raise ConnectionError from None

    async def _receive_data_chunk(self, chunk: rtcsctptransport.DataChunk) -> None:
        await super()._receive_data_chunk(chunk)
        if self._advertised_rwnd < 0 or len(self._inbound_streams) > MAX_STREAMS:
            raise ConnectionError


class Peer(RtpEnd):
    """`connect`, then `close`; in between what comes goes to `far`. It is a `SoundLine`.

    certificate: of the process.
    """

    def __init__(self, offer: Offer, mux: Mux, certificate: RTCCertificate, far: FarEnd) -> None:
        super().__init__()
        self._offer = offer
        self._far = far
        self._line = mux.line()
        self._certificate = certificate
        self._dtls = SoundTransport(self._line, certificate, self)
        self._dtls._set_role("client" if offer.setup == "active" else "server")
        self._dtls.on("statechange", self._observe_state)
        self._sctp = BoundedSctp(self._dtls)
        self._sctp.on("datachannel", self._take_channel)
        self._channel: RTCDataChannel | None = None
        self._opened = asyncio.Event()
        self._drained = asyncio.Event()
        self._state = PeerState.AWAITED
        self._opus = OpusEncoder()
        self._begin((self._opus, OpusDecoder()), offer.opus)
        self._is_quiet = True  # the peer has been told that silence goes on

    def answer(self, candidates: Sequence[Address]) -> str:
        """Our answer to its offer. candidates: where it finds us."""
        fingerprint = next(
            one.value for one in self._certificate.getFingerprints() if one.algorithm == "sha-256"
        )
        local = LocalEnd(
            self._line.ufrag, self._line.password, fingerprint, self._sender.ssrc,
            candidates, secrets.randbits(62),
        )  # fmt: skip
        return answer(self._offer, local)

    # --- life ---

    async def connect(self) -> None:
        """Wait for the peer to be there, its channel open. Raises: ConnectionError."""
        await self._line.is_checked.wait()
        theirs = RTCDtlsFingerprint("sha-256", self._offer.fingerprint)
        await self._dtls.start(RTCDtlsParameters([theirs]))
        if self._dtls.state != "connected":
            raise ConnectionError
        if self._offer.events is not None:
            most = RTCSctpCapabilities(self._offer.message_bytes)
            await self._sctp.start(most, self._offer.sctp_port)
            await self._opened.wait()
            if self._channel is None:  # it has left meanwhile
                raise ConnectionError
        self._state = PeerState.LIVE
        self._tick()

    async def close(self) -> None:
        """Tell the peer, and give everything back; idempotent."""
        if self._state is PeerState.CLOSED:
            return
        if self._state is PeerState.LIVE:
            self._log_line()
        self._state = PeerState.CLOSED
        self._opened.set()
        self._drained.set()
        self._stop()
        await self._sctp.stop()
        await self._dtls.stop()
        self._dtls.remove_all_listeners()
        self._sctp.remove_all_listeners()
        self._line.close()

    def _log_line(self) -> None:
        """Write what an operator asks first where a call sounded bad."""
        made_ms = 1000.0 * self._receiver.n_concealed / VOICE_HZ
        rtt_ms, lost = self._rtcp.round_trip_ms, self._rtcp.lost_percent
        told = "unknown" if rtt_ms is None else f"{rtt_ms:.0f} ms"
        log.info(
            "a WebRTC line ends: round trip %s; %.0f ms of the caller made up for losses; "
            "of the agent's packets %.0f %% were lost at last", told, made_ms, lost,
        )  # fmt: skip

    def _observe_state(self) -> None:
        if self._dtls.state in ("closed", "failed"):
            self._leave(HUNG_UP, "the peer closed its connection")

    def _leave(self, code: int, how: str) -> None:
        self._opened.set()
        self._drained.set()
        if self._state is not PeerState.CLOSED:
            self._far.end(code, how)

    # --- events ---

    def _take_channel(self, channel: RTCDataChannel) -> None:
        """The one channel of events; others are closed."""
        if channel.label != CHANNEL or self._channel is not None:
            channel.close()
            return
        self._channel = channel
        channel.bufferedAmountLowThreshold = MAX_BUFFERED_BYTES // 2
        channel.on("message", self._far.take)
        channel.on("close", lambda: self._leave(HUNG_UP, "the peer closed its channel"))
        channel.on("bufferedamountlow", self._drained.set)
        self._opened.set()

    async def send(self, event: str) -> None:
        """Send an event; waits while the peer does not take them. Raises: Disconnected."""
        channel = self._channel
        if channel is None:
            return  # the peer asked for none
        if channel.readyState != "open":
            raise Disconnected(HUNG_UP, "the peer closed its channel")
        try:
            channel.send(event)
        except ValueError:
            told = (
                f"the peer takes messages of {self._offer.message_bytes} bytes, found {len(event)}"
            )
            raise Disconnected(1009, told) from None
        while channel.bufferedAmount > MAX_BUFFERED_BYTES and channel.readyState == "open":
            self._drained.clear()
            await self._drained.wait()

    # --- the caller's sound ---

    def receive_sound(self, data: bytes) -> None:
        """A packet of the peer, decrypted; what is none is dropped."""
        try:
            packet = RtpPacket.parse(data)
        except MalformedPacket:
            return
        self._hear(self._receiver.packet(packet, self._clock()))
        self._arm()

    def receive_report(self, data: bytes) -> None:
        """Take in the peer's report about the line."""
        if self._read_report(data):
            self._opus.expect_loss(max(FIRST_LOSS_PERCENT, round(self._rtcp.lost_percent)))

    def _pass_on(self, samples: Samples) -> None:
        if self._is_live:  # what came before is old by now
            self._far.hear(samples.astype("<i2", copy=False).tobytes())

    # --- the agent's ---

    def _send_frame(self, samples: Samples) -> None:
        """The first of a silence that the encoder leaves out is sent: it tells the peer so."""
        payload = self._encoder.encode(samples)
        was_quiet, self._is_quiet = self._is_quiet, len(payload) <= DTX_BYTES
        if was_quiet and self._is_quiet:
            self._sender.skip(FRAME_SAMPLES)
            return
        packet = self._sender.packet(payload, FRAME_SAMPLES, self._clock())
        self._dtls.send_sound(packet.serialize())

    # --- time ---

    @property
    def _is_live(self) -> bool:
        return self._state is PeerState.LIVE

    @property
    def _has_unread(self) -> bool:
        return self._line.has_unread

    @property
    def _send_due_s(self) -> float:
        """Return when silence is due: without it a peer takes the end of a reply for a loss, and
        makes up 0.2 s of it.
        """
        due_s = self._sender.due_s
        is_over = self._is_quiet and not self._rest
        return math.inf if is_over or due_s is None else due_s + FRAME_S

    def _send_due(self, now_s: float) -> None:
        self.send_sound(bytes(FRAME_BYTES - len(self._rest)))

    def _send_report(self, report: bytes) -> None:
        self._dtls.send_report(report)

    @property
    def _lost_at_s(self) -> float:
        return self._line.heard_s + CONSENT_S

    def _lose(self) -> None:
        self._leave(LINE_BROKE, f"the line broke: no check of the peer for {CONSENT_S:g} s")
