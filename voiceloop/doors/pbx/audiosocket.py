"""AudioSocket: an exchange's sound over plain TCP, in frames of one byte of kind and two of length.

It has neither keys nor a way to take sound back: who calls is known by a UUID that we have given
out, and the lead is short. Source: docs.asterisk.org, "AudioSocket"; CyCoreSystems/audiosocket.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from uuid import UUID

from voiceloop.call.connection import HUNG_UP, LINE_BROKE, Disconnected
from voiceloop.doors.carriers import dialect as wire
from voiceloop.doors.pbx.asterisk import PBX_LEAD_MS
from voiceloop.errors import InvalidRequest

HEAD_BYTES = 3


class Kind(IntEnum):
    """The kind of a frame's contents."""

    HANG_UP = 0x00
    UUID = 0x01
    DIGIT = 0x03
    SOUND = 0x10  # 8 kHz, 16 bits, little-endian; up to 0x18 other rates, which none sends unasked
    ERROR = 0xFF


class AudioSocketStream(wire.Dialect):
    """As `Dialect`."""

    lead_ms = PBX_LEAD_MS

    def read(self, frame: wire.Frame) -> wire.Incoming | None:
        assert isinstance(frame, bytes)
        kind, payload = frame[0], frame[HEAD_BYTES:]
        match kind:
            case Kind.SOUND:
                return wire.Heard(payload)
            case Kind.DIGIT:
                return wire.Pressed(payload[:1].decode("ascii", "replace"))
            case Kind.UUID if len(payload) == 16:
                return wire.Started(str(UUID(bytes=payload)), encoding="pcm16")
            case Kind.HANG_UP | Kind.ERROR:
                return wire.Stopped()
        raise InvalidRequest(f"expected a frame of AudioSocket, found one of kind {kind}")

    def media(self, payload: bytes) -> wire.Frame:
        return frame_of(Kind.SOUND, payload)

    def hang_up(self) -> wire.Frame | None:
        return frame_of(Kind.HANG_UP)


def frame_of(kind: Kind, payload: bytes = b"") -> bytes:
    return bytes([kind]) + len(payload).to_bytes(2, "big") + payload


class TcpSocket:
    """As `stream.Socket`, of whole frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self) -> wire.Frame:
        """Raises: Disconnected."""
        try:
            head = await self._reader.readexactly(HEAD_BYTES)
            return head + await self._reader.readexactly(int.from_bytes(head[1:], "big"))
        except asyncio.IncompleteReadError:
            raise Disconnected(HUNG_UP, "the exchange ended its connection") from None
        except OSError as error:
            raise Disconnected(LINE_BROKE, f"the line broke: {error}") from None

    async def send(self, data: wire.Frame) -> None:
        """Raises: Disconnected."""
        assert isinstance(data, bytes)
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise Disconnected(LINE_BROKE, f"the line broke: {error}") from None

    async def close(self, code: int = 1000, reason: str = "") -> None:
        self._writer.close()
