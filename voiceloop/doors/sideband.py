"""A second WebSocket on a call: it reads the call's events and writes events as its client does.

Owns the two directions of such a seat, and its end: with the call, or by itself, which ends nothing
else. Sound does not come here.
"""

from __future__ import annotations

import asyncio

from voiceloop.call.connection import Disconnected, Transport
from voiceloop.doors.line import Line, Side
from voiceloop.operation import Limits


async def sit_beside(transport: Transport, line: Line, side: Side) -> None:
    """Read and write until the call is over, or the one who sits there leaves."""
    reading = asyncio.create_task(_read(transport, line), name="beside a call")
    reading.add_done_callback(lambda task: side.end())
    code, reason = 1000, "the call is over"
    try:
        while (event := await side.next()) is not None:
            async with asyncio.timeout(Limits.slow_client_s):
                await transport.send(event)
    except TimeoutError:
        code, reason = 1013, "the client does not read"
    except Disconnected:
        pass
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await transport.close(code, reason)


async def _read(transport: Transport, line: Line) -> None:
    is_unlocked = not transport.hello.secret  # a lasting key, which a page never has
    while True:
        try:
            event = await transport.receive()
        except Disconnected:
            return
        assert isinstance(event, str | bytes)
        line.take(event, is_unlocked=is_unlocked)
