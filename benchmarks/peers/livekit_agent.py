"""LiveKit Agents as a peer: run by its own environment's Python, not by ours.

    python benchmarks/peers/livekit_agent.py --port N --services http://.../v1 --settings
    default|tuned

An ``AgentSession`` without its server: a custom audio input and output on a bare WebSocket. PCM16
at 24 kHz goes both ways, the text "clear" says that what is queued was dropped. The output leaves
at the pace of the sound, as from LiveKit's own audio source.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time

from aiohttp import WSMsgType, web
from livekit import rtc
from livekit.agents import Agent, AgentSession, inference, utils
from livekit.agents.voice import io
from livekit.plugins import openai

RATE_HZ = 24_000
FRAME_S = 0.02
FRAME_BYTES = int(RATE_HZ * FRAME_S) * 2
# The tuned settings: quicker when its detector is sure, and a second instead of 2.5 when it is not;
# the voice begins before the turn is confirmed; half the speech before an interruption counts.
TUNED = {
    "endpointing": {"min_delay": 0.1, "max_delay": 1.0},
    "preemptive_generation": {"preemptive_tts": True},
    "interruption": {"min_duration": 0.25},
}


class LineIn(io.AudioInput):
    """What the caller sends."""

    def __init__(self) -> None:
        super().__init__(label="line")
        self.frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def __anext__(self) -> rtc.AudioFrame:
        return await self.frames.get()


class LineOut(io.AudioOutput):
    """Frames of 20 ms at the pace of the sound."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        super().__init__(
            label="line",
            capabilities=io.AudioOutputCapabilities(pause=True),
            sample_rate=RATE_HZ,
        )
        self._socket = socket
        self._queued = bytearray()
        self._more = asyncio.Event()
        self._may_play = asyncio.Event()
        self._may_play.set()
        self._pushed_s = self._played_s = 0.0
        self._started = False
        self._complete = False

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self._complete = False
        self._queued += bytes(frame.data)
        self._pushed_s += frame.duration
        self._more.set()

    def flush(self) -> None:
        super().flush()
        if self._pushed_s:
            self._complete = True
            self._more.set()

    def clear_buffer(self) -> None:
        self._queued.clear()
        if self._pushed_s:
            self._over(interrupted=True)
            asyncio.ensure_future(self._socket.send_str("clear"))

    def pause(self) -> None:
        super().pause()
        self._may_play.clear()

    def resume(self) -> None:
        super().resume()
        self._may_play.set()

    def _over(self, *, interrupted: bool) -> None:
        played_s = min(self._played_s, self._pushed_s)
        self._pushed_s = self._played_s = 0.0
        self._started = self._complete = False
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)

    async def play(self) -> None:
        due = 0.0
        while True:
            await self._may_play.wait()
            if not self._queued:
                if self._complete:
                    self._over(interrupted=False)
                self._more.clear()
                await self._more.wait()
                continue
            due = max(due, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            if not self._may_play.is_set() or not self._queued:
                continue
            piece = bytes(self._queued[:FRAME_BYTES])
            del self._queued[:FRAME_BYTES]
            if not self._started:
                self._started = True
                self.on_playback_started(created_at=time.time())
            await self._socket.send_bytes(piece)
            seconds = len(piece) / 2 / RATE_HZ
            self._played_s += seconds
            due += seconds


def session_of(services: str, settings: str) -> AgentSession:
    handling: dict = {"turn_detection": inference.TurnDetector(version="v1-mini")}
    if settings == "tuned":
        handling |= TUNED
    return AgentSession(
        stt=openai.STT(model="whisper-1", base_url=services, api_key="none"),
        llm=openai.LLM(model="stub", base_url=services, api_key="none"),
        tts=openai.TTS(model="tts-1", base_url=services, api_key="none", response_format="pcm"),
        vad=inference.VAD(),
        turn_handling=handling,
    )


async def serve_call(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    session = session_of(request.app["services"], request.app["settings"])
    line_in, line_out = LineIn(), LineOut(socket)
    session.input.audio, session.output.audio = line_in, line_out
    playing = asyncio.create_task(line_out.play())
    await session.start(agent=Agent(instructions="You are a friendly voice assistant."))
    await socket.send_str("ready")
    try:
        async for message in socket:
            if message.type == WSMsgType.BINARY:
                data = message.data
                frame = rtc.AudioFrame(
                    data=data, sample_rate=RATE_HZ, num_channels=1,
                    samples_per_channel=len(data) // 2,
                )  # fmt: skip
                line_in.frames.put_nowait(frame)
    finally:
        playing.cancel()
        await session.aclose()
    return socket


async def ready(request: web.Request) -> web.Response:
    return web.json_response({"ready": True})


async def with_http(app: web.Application):  # type: ignore[no-untyped-def]
    async with utils.http_context.open():
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True, help="loopback port to listen on")
    parser.add_argument("--services", required=True, metavar="URL", help="of stub_services, to /v1")
    parser.add_argument(
        "--settings", choices=("default", "tuned"), required=True, help="what it is given"
    )
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    app = web.Application()
    app["services"], app["settings"] = chosen.services, chosen.settings
    app.router.add_get("/readyz", ready)
    app.router.add_get("/call", serve_call)
    web.run_app(app, host="127.0.0.1", port=chosen.port, print=None)


if __name__ == "__main__":
    main()
