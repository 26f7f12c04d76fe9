"""The sending side of one call's connection: whatever the protocol queues, in order.

Owns the only task that sends, the deltas that are left out because their response was cut short,
and how long a client may take to read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from voiceloop.call.connection import Disconnected, Transport
from voiceloop.errors import VoiceLoopError
from voiceloop.realtime.events import AudioDelta
from voiceloop.realtime.protocol import Outgoing, Protocol
from voiceloop.realtime.sound_line import LINE_FORMAT

MAX_UNREAD_BYTES = 2 * 1024 * 1024  # of events; a client that leaves more is not heard either
MAX_WAITING_FRAMES = 4096  # a minute of 20 ms deltas: only a client that never reads has them


class Writer:
    """`run` for as long as the call lasts.

    output: set when the protocol has queued something. slow_client_s: to take one frame. end: ends
    the call with a close code and its reason. on_audio: sound of this response has been sent.
    """

    def __init__(
        self,
        protocol: Protocol,
        transport: Transport,
        output: asyncio.Event,
        slow_client_s: float,
        end: Callable[[int, str], NoReturn],
        on_audio: Callable[[str], None],
    ) -> None:
        self._protocol = protocol
        self._transport = transport
        self._output = output
        self._slow_client_s = slow_client_s
        self._end = end
        self._on_audio = on_audio
        self._sent = asyncio.Event()

    async def run(self) -> None:
        outbox = self._protocol.outbox
        while True:
            await self._until_due()
            self._output.clear()
            frames = self._protocol.take_outgoing()
            if len(frames) > MAX_WAITING_FRAMES:
                self._end(1013, "the client does not read")
            for frame in frames:
                if not outbox.is_stale(frame):
                    await self._send(frame)
                outbox.done(frame)
                self._sent.set()

    async def _until_due(self) -> None:
        """Wait for what the protocol queues; tell meanwhile that a line's sound has been played."""
        if self._transport.line is None:
            await self._output.wait()
            return
        try:
            async with asyncio.timeout_at(self._protocol.output.due_s):
                await self._output.wait()
        except TimeoutError:
            self._protocol.output.settle(asyncio.get_running_loop().time())

    def _play(self, sound: AudioDelta, *, is_fade: bool) -> None:
        """is_fade: to silence, of a response whose end the client knows."""
        assert self._transport.line is not None
        self._transport.line.send_sound(sound.delta)
        if not is_fade:
            duration_ms = LINE_FORMAT.duration_ms(len(sound.delta))
            now_s = asyncio.get_running_loop().time()
            self._protocol.output.observe_sent(sound.response_id, duration_ms, now_s)

    async def _send(self, frame: Outgoing) -> None:
        if frame.sound is not None:
            self._play(frame.sound, is_fade=not frame.is_delta)
        else:
            await self._send_text(frame.data)
        if frame.is_audio and frame.response_id is not None:
            self._on_audio(frame.response_id)

    async def _send_text(self, data: str) -> None:
        try:
            async with asyncio.timeout(self._slow_client_s):
                await self._transport.send(data)
        except TimeoutError:
            self._end(1013, "the client does not read")
        except Disconnected as gone:
            self._end(gone.code, gone.how)

    async def until_the_client_reads(self) -> None:
        """Wait while too much lies unread: every frame of the client's may ask for more.

        `run` ends it: with what it sends, or with the call when a client takes too long.
        """
        while self._protocol.outbox.n_bytes > MAX_UNREAD_BYTES:
            self._sent.clear()
            await self._sent.wait()

    async def say_last(self, error: VoiceLoopError) -> None:
        """Wait until the client has been sent this; one that reads too late is not waited for."""
        self._protocol.error(error)
        await self.until_sent()

    async def until_sent(self) -> None:
        outbox = self._protocol.outbox
        last = outbox.n_put
        try:
            async with asyncio.timeout(self._slow_client_s):
                while outbox.n_done < last:
                    self._sent.clear()
                    await self._sent.wait()
        except TimeoutError:
            pass
