"""libwebrtc (the engine of browsers) as the line of a simulated caller.

Has the shape of `RealtimeConnection`: what its buffer (NetEQ) lets out is told as audio deltas of
the reply that sounds, in pieces of 10 ms, with the time at which they came out. So a call over
WebRTC is measured by the same code as one over a WebSocket.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np

from audio.resample import Resampler
from benchmarks.webrtc.relay import Impairment, Relay, is_sound, now_s
from clients.connection import RATE_HZ, Received
from clients.errors import ConnectionFailed
from clients.playout import Interrupted
from clients.recording import Samples

os.environ["WRTC_ALLOW_LOOPBACK"] = "1"

MOST_S = 10.0
LOUD = 184  # -45 dBFS, from which the benchmarks call a sample audible
SILENT_BYTES = 60  # a packet of silence has some 20 of payload, and RTP and SRTP add 22
# Sound may come out so long before the news of whose it is; what is older was another's: a seat
# beside a telephone's call is often taken within its greeting.
EARLY_S = 0.3
TAIL_S = 0.3  # quiet for so long after the news of its end: nothing of the reply comes any more
N_WRITTEN = RATE_HZ // 100  # libwebrtc takes sound in pieces of 10 ms
MAX_WAITING = 10_000  # events and pieces of sound that nobody has read


class Ear:
    """Tells the sound that comes out of a line as deltas of the reply that sounds.

    Events come beside the sound, and sooner or later than it. heard_ms: of each item.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.ended_by = ""
        self.heard_ms: dict[str, float] = {}
        # What has come out, and what of it is loud: on a busy machine it is read late.
        self.out_ms = 0.0
        self.loud: deque[tuple[float, Samples]] = deque(maxlen=MAX_WAITING)  # from this ms on
        self._queue: asyncio.Queue[Received | None] = asyncio.Queue(MAX_WAITING)
        self._items: dict[str, str] = {}  # of each response, the one that sounds
        self._sounding: tuple[str, str] | None = None
        self._is_ending = False
        self._last_loud = 0.0
        self._first_loud = 0.0
        self._early: deque[tuple[float, Samples]] = deque(maxlen=round(100 * EARLY_S))

    # --- what `SimulatedCall` does with a line ---

    async def truncate(self, interrupted: Interrupted) -> None:
        """The server holds the sound, and cuts the item itself."""

    async def events(self) -> AsyncIterator[Received]:
        while (received := await self._queue.get()) is not None:
            yield received

    # --- what comes ---

    def take(self, event: dict[str, Any], at: float) -> None:
        """An event of the server's."""
        match event["type"]:
            case "response.content_part.added":
                self._items[event["response_id"]] = event["item_id"]
            case "output_audio_buffer.started":
                self._begin(event["response_id"], at)
            case "output_audio_buffer.stopped" | "output_audio_buffer.cleared":
                self._is_ending = True
        self._queue.put_nowait(Received(event, at))

    def _begin(self, response_id: str, now_s: float) -> None:
        self._sounding, self._is_ending = (response_id, self._items.get(response_id, "")), False
        self._first_loud = self._last_loud = 0.0
        for at, samples in self._early:
            if at > now_s - EARLY_S:
                self._tell(at, samples)
        self._early.clear()

    def came_out(self, at: float, samples: Samples) -> None:
        """The next sound of the line, at 24 kHz."""
        from_ms, self.out_ms = self.out_ms, self.out_ms + 1000.0 * len(samples) / RATE_HZ
        if _is_loud(samples):
            self.loud.append((from_ms, samples))
        if self._sounding is None:
            self._early.append((at, samples))
            return
        self._tell(at, samples)
        if self._is_ending and at - max(self._last_loud, self._first_loud) > TAIL_S:
            self._sounding = None

    def _tell(self, at: float, samples: Samples) -> None:
        assert self._sounding is not None
        response_id, item_id = self._sounding
        if _is_loud(samples):
            self._first_loud = self._first_loud or at
            self._last_loud = at
            duration_ms = 1000.0 * len(samples) / RATE_HZ
            self.heard_ms[item_id] = 1000.0 * (at - self._first_loud) + duration_ms
        event = {
            "type": "response.output_audio.delta",
            "response_id": response_id,
            "item_id": item_id,
            "delta": base64.b64encode(samples.astype("<i2").tobytes()).decode(),
        }
        self._queue.put_nowait(Received(event, at))


class EarConnection(Ear):
    """One call. dial_ms: from the offer to its answer; created_ms: to the session."""

    def __init__(self, url: str) -> None:
        import webrtc

        super().__init__(url)
        self.dial_ms = self.created_ms = 0.0
        self.sound_at: list[float] = []  # when packets of sound came, before any buffer
        self._begun_s = now_s()
        self._kept: list[Any] = []
        self._relay: Relay | None = None
        self._webrtc = webrtc
        self._peer = webrtc.RTCPeerConnection()
        self._channel = self._peer.create_data_channel("oai-events")
        self._channel.on("message", self._take)
        self._microphone = webrtc.MediaStreamTrackGenerator("audio")
        self._peer.add_track(self._microphone)
        self._peer.on("track", self._listen)

    @classmethod
    async def open(cls, url: str, impairment: Impairment, seed: int) -> EarConnection:
        """Connect over a good line, which is the impaired one from then on.

        url: of ``/v1/realtime/calls``. Raises: ConnectionFailed.
        """
        ear = cls(url)
        offer = await ear._peer.create_offer()
        await ear._peer.set_local_description(offer)
        async with httpx.AsyncClient(trust_env=False) as http:  # made before the clock runs
            ear._begun_s = now_s()
            headers = {"content-type": "application/sdp"}
            told = await http.post(url, headers=headers, content=offer.sdp)
        ear.dial_ms = 1000.0 * (now_s() - ear._begun_s)
        if told.status_code != 201:
            raise ConnectionFailed(f"expected {url} to answer an offer, found {told.text[:200]}")
        answer = ear._through_relay(told.text, seed)
        description = ear._webrtc.RTCSessionDescriptionInit("answer", answer)
        await ear._peer.set_remote_description(description)
        first = await asyncio.wait_for(ear._queue.get(), MOST_S)
        assert first is not None
        ear.created_ms = 1000.0 * (first.at - ear._begun_s)
        ear._queue.put_nowait(first)
        assert ear._relay is not None
        ear._relay.impairment = impairment
        return ear

    def _through_relay(self, answer: str, seed: int) -> str:
        """The answer, with the relay's port in the place of the server's."""
        found = re.search(r"a=candidate:\S+ 1 udp \d+ 127\.0\.0\.1 (\d+) typ host", answer, re.I)
        if found is None:
            raise ConnectionFailed("expected a candidate at 127.0.0.1 in the answer, found none")
        self._relay = Relay(("127.0.0.1", int(found[1])), Impairment(), seed, self._pass)
        return answer.replace(f"127.0.0.1 {found[1]} typ", f"127.0.0.1 {self._relay.port} typ")

    def _pass(self, direction: str, data: bytes) -> None:
        if direction == "down" and is_sound(data) and len(data) > SILENT_BYTES:
            self.sound_at.append(now_s())

    # --- what `SimulatedCall` does with a line ---

    async def send(self, event: dict[str, Any]) -> None:
        self._channel.send(json.dumps(event))

    async def append_audio(self, samples: Samples) -> None:
        for start in range(0, len(samples), N_WRITTEN):
            piece = samples[start : start + N_WRITTEN].tobytes()
            self._microphone._generator.writeAudio(piece, RATE_HZ, 1, N_WRITTEN)

    async def close(self) -> None:
        self._peer.close()
        if self._relay is not None:
            self._relay.close()
        self._queue.put_nowait(None)

    # --- what comes ---

    def _take(self, message: Any) -> None:
        self.take(json.loads(message.data), now_s())

    def _listen(self, event: Any) -> None:
        self._kept += [event, asyncio.ensure_future(self._hear(event.track))]

    async def _hear(self, track: Any) -> None:
        webrtc, resampler, rate_hz = self._webrtc, None, 0
        options = webrtc.MediaStreamTrackProcessorInit(track, 100)
        async for frame in webrtc.MediaStreamTrackProcessor(options).readable:
            at = now_s()
            heard = bytearray(frame.number_of_frames * frame.number_of_channels * 2)
            frame.copy_to(heard, webrtc.AudioDataCopyToOptions(plane_index=0, format="s16"))
            samples = np.frombuffer(bytes(heard), np.int16)[:: frame.number_of_channels]
            if resampler is None or rate_hz != frame.sample_rate:
                rate_hz = int(frame.sample_rate)
                resampler = Resampler(rate_hz, RATE_HZ)
            frame.close()
            self.came_out(at, resampler.push(samples))


def _is_loud(samples: Samples) -> bool:
    return len(samples) > 0 and int(np.abs(samples.astype(np.int32)).max()) > LOUD
