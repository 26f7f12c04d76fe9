"""A telephone's line by SIP, and strangers who send INVITEs to the same port."""

from __future__ import annotations

import asyncio
import secrets

from benchmarks.phone.peers import Frame
from clients.errors import ConnectionFailed
from tests.sip_phone import Telephone as SipPhone
from voiceloop.doors.rtp.packet import RtpPacket

G711_AND_NOISE = "0 13 101"  # comfort noise: silence is a packet now and then
MOST_WAITING = 512  # packets, as of `carriers.stream`
STRANGER = "127.0.0.2"  # of no network that is let in


class SipStream:
    """Pieces of G.711 in packets, with the shape of a WebSocket. call_id: as of its INVITE."""

    def __init__(self, phone: SipPhone) -> None:
        self._phone = phone
        self._came: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        phone.on_packet = self._take
        self.call_id = phone.call_id

    @classmethod
    async def dial(cls, port: int) -> SipStream:
        """Raises: ConnectionFailed: the call is not taken."""
        phone = await SipPhone(port).open()
        stream = cls(phone)
        answer = await phone.call(G711_AND_NOISE)
        if answer.status != 200:
            phone.close()
            raise ConnectionFailed(f"expected a call that is taken, found {answer.first}")
        return stream

    def _take(self, packet: RtpPacket) -> None:
        if packet.payload_type == 0 and not self._came.full():
            self._came.put_nowait(packet.payload)

    async def send(self, frame: Frame) -> None:
        assert isinstance(frame, bytes)
        self._phone.packet(frame)

    async def recv(self) -> Frame:
        return await self._came.get()

    async def close(self) -> None:
        await self._phone.ask("BYE")
        self._phone.close()


async def flood(port: int, a_second: float) -> None:
    """INVITEs of a stranger, each of a call of its own, until this is cancelled."""
    phone = await SipPhone(port).open(STRANGER)
    now = asyncio.get_running_loop().time
    began_s, n_sent = now(), 0
    try:
        while True:
            phone.call_id = secrets.token_hex(8)
            phone.write(phone.request("INVITE", phone.sdp()))
            n_sent += 1
            while not phone.messages.empty():
                phone.messages.get_nowait()
            await asyncio.sleep(max(0.0, began_s + n_sent / a_second - now()))
    finally:
        phone.close()
