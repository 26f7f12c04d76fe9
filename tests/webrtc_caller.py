"""A caller over WebRTC in this process, by aiortc: sound both ways, events, what came when."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any

import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from av import AudioFrame
from numpy.typing import NDArray

from tests.fakes import quiet, utterance

RATE_HZ = 48_000
LOUD = 300.0  # RMS of a frame of the scripted voice; silence is 0
FRAME = RATE_HZ // 50


class Microphone(MediaStreamTrack):
    """Plays what is put in, silence else; 20 ms at a time, by the clock."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._samples = np.zeros(0, np.int16)
        self._n_sent = 0
        self._begun_s: float | None = None
        self.empty = asyncio.Event()

    def put(self, samples: NDArray[np.int16]) -> None:
        self._samples = np.concatenate([self._samples, samples])
        self.empty.clear()

    async def recv(self) -> AudioFrame:
        loop = asyncio.get_running_loop()
        self._begun_s = self._begun_s if self._begun_s is not None else loop.time()
        await asyncio.sleep(max(0.0, self._begun_s + self._n_sent / RATE_HZ - loop.time()))
        samples, self._samples = self._samples[:FRAME], self._samples[FRAME:]
        if not len(self._samples):
            self.empty.set()
        if len(samples) < FRAME:
            samples = np.concatenate([samples, quiet(20, RATE_HZ)[: FRAME - len(samples)]])
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, self._n_sent, Fraction(1, RATE_HZ)
        self._n_sent += FRAME
        return frame


class WebRtcCaller:
    """`async with calling(url) as caller:`; hangs up after the block."""

    def __init__(self, *, has_channel: bool = True) -> None:
        self.peer = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self.microphone = Microphone()
        self.peer.addTrack(self.microphone)
        self.channel: Any = None
        self.events: list[tuple[float, dict[str, Any]]] = []
        self.heard: list[tuple[float, float]] = []  # when a frame came, and its loudness
        self.call_id = self.offer = ""
        self.answer_headers: httpx.Headers
        self.closed = asyncio.Event()
        self._came = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: list[str] = []  # events for when the channel opens
        if has_channel:
            self.channel = self.peer.createDataChannel("oai-events")
            self.channel.on("open", self._send_early)
            self.channel.on("message", self._take)
            self.channel.on("close", self.closed.set)
        self.peer.on("track", self._listen)

    def _take(self, message: str) -> None:
        self.events.append((asyncio.get_running_loop().time(), json.loads(message)))
        self._begin(self._tell())

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _listen(self, track: MediaStreamTrack) -> None:
        self._begin(self._hear(track))

    async def _hear(self, track: MediaStreamTrack) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                frame = await track.recv()
                samples = frame.to_ndarray().astype(np.float64)
                self.heard.append((loop.time(), float(np.sqrt((samples**2).mean()))))
        except Exception:
            return

    async def dial(
        self,
        url: str,
        *,
        query: str = "",
        headers: dict[str, str] | None = None,
        form: str = "",
        session: Any = None,
        follows: bool = True,
    ) -> httpx.Response:
        """Send the offer, in the form "json", "multipart" or by itself; take the answer up."""
        await self.peer.setLocalDescription(await self.peer.createOffer())
        self.offer = self.peer.localDescription.sdp
        headers = headers or {}
        body: dict[str, Any] = {"content": self.offer}
        if form == "json":
            body = {"json": {"sdp": self.offer, "session": session}}
        elif form == "multipart":
            body = {"files": {"sdp": (None, self.offer), "session": (None, json.dumps(session))}}
        else:
            headers = {"content-type": "application/sdp", **headers}
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.post(f"{url}/v1/realtime/calls{query}", headers=headers, **body)
        self.answer_headers = answer.headers
        if answer.status_code == 201 and follows:
            self.call_id = answer.headers["location"].rpartition("/")[2]
            await self.peer.setRemoteDescription(RTCSessionDescription(answer.text, "answer"))
        return answer

    async def hang_up(self) -> None:
        await self.peer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def send(self, type: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": type, **fields}))

    def send_when_open(self, type: str, **fields: Any) -> None:
        self._before.append(json.dumps({"type": type, **fields}))
        if self.channel.readyState == "open":
            self._send_early()

    def _send_early(self) -> None:
        for event in self._before:
            self.channel.send(event)
        self._before = []

    def at(self, type: str) -> float:
        """When the first of it came."""
        return next(at_s for at_s, event in self.events if event["type"] == type)

    def said(self) -> str:
        deltas = self.of("response.output_audio_transcript.delta")
        return "".join(event["delta"] for event in deltas)

    def types(self) -> list[str]:
        return [event["type"] for _, event in self.events]

    def of(self, type: str) -> list[dict[str, Any]]:
        return [event for _, event in self.events if event["type"] == type]

    async def until(self, type: str, *, count: int = 1) -> dict[str, Any]:
        async with asyncio.timeout(10), self._came:
            await self._came.wait_for(lambda: len(self.of(type)) >= count)
        return self.of(type)[count - 1]

    async def say(self, ms: float) -> float:
        """Speak; returns when the last of it was sent."""
        self.microphone.put(utterance(ms, RATE_HZ))
        await self.microphone.empty.wait()
        return asyncio.get_running_loop().time()


@asynccontextmanager
async def calling(
    url: str, *, has_channel: bool = True, **options: Any
) -> AsyncIterator[WebRtcCaller]:
    caller = WebRtcCaller(has_channel=has_channel)
    try:
        answer = await caller.dial(url, **options)
        assert answer.status_code == 201, answer.text
        yield caller
    finally:
        await caller.hang_up()
