"""Who connects over TCP and says nothing keeps no exchange out."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

pytest.importorskip("aiosipua", reason="the extra sip is not installed")

from aiosipua.message import SipRequest, SipResponse

from voiceloop.doors.sip.endpoint import MAX_STRANGERS, Endpoint, Flow

EXCHANGE = "127.0.0.2"
OPTIONS = (
    "OPTIONS sip:a@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/TCP 127.0.0.2;branch=z9hG4bK1\r\n"
    "From: <sip:b@127.0.0.2>;tag=1\r\nTo: <sip:a@127.0.0.1>\r\nCall-ID: 1\r\n"
    "CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
)


class Exchange:
    """A `Handler` that knows one host."""

    def __init__(self) -> None:
        self.handled = asyncio.Event()

    def is_known(self, host: str) -> bool:
        return host == EXCHANGE

    def handle(self, request: SipRequest, flow: Flow) -> None:
        self.handled.set()

    def handle_stray(self, response: SipResponse, flow: Flow) -> None: ...


async def test_strangers_who_only_connect_leave_room_for_an_exchange() -> None:
    handler = Exchange()
    with closing(Endpoint("", handler)) as endpoint:
        await endpoint.open("127.0.0.1", 0)
        writers = []
        for _ in range(MAX_STRANGERS):
            _, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writers.append(writer)
        reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
        writers.append(writer)
        async with asyncio.timeout(5.0):
            assert await reader.read() == b""  # one too many
        _, writer = await asyncio.open_connection(
            "127.0.0.1", endpoint.port, local_addr=(EXCHANGE, 0)
        )
        writers.append(writer)
        writer.write(OPTIONS.encode())
        async with asyncio.timeout(5.0):
            await handler.handled.wait()
        for writer in writers:
            writer.close()
