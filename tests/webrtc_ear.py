"""libwebrtc as a caller, in a process of its own: ``python -m tests.webrtc_ear URL SPEECH_MS``.

Speaks for so long, and prints what came as one line of JSON: the events' types, and how long after
the last of its speech the agent was loud behind its buffer (NetEQ). The process ends by `os._exit`:
the library's threads do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import httpx
import numpy as np

os.environ["WRTC_ALLOW_LOOPBACK"] = "1"
import webrtc  # noqa: E402

from tests.fakes import quiet, utterance  # noqa: E402

RATE_HZ = 48_000
FRAME = RATE_HZ // 100
LOUD = 1000
MOST_S = 10.0


class Ear:
    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []
        self.loud: list[float] = []
        self.created = asyncio.Event()
        self.peer = webrtc.RTCPeerConnection()
        self._tracks: list[Any] = []
        self.channel = self.peer.create_data_channel("oai-events")
        self.channel.on("message", self._take)
        self.microphone = webrtc.MediaStreamTrackGenerator("audio")
        self.peer.add_track(self.microphone)
        self.peer.on("track", self._listen)

    def _take(self, event: Any) -> None:
        self.events.append((time.perf_counter(), json.loads(event.data)["type"]))
        self.created.set()

    def _listen(self, event: Any) -> None:
        self._tracks += [event, asyncio.ensure_future(self._hear(event.track))]

    async def _hear(self, track: Any) -> None:
        options = webrtc.MediaStreamTrackProcessorInit(track, 100)
        async for frame in webrtc.MediaStreamTrackProcessor(options).readable:
            heard = bytearray(frame.number_of_frames * frame.number_of_channels * 2)
            frame.copy_to(heard, webrtc.AudioDataCopyToOptions(plane_index=0, format="s16"))
            if np.abs(np.frombuffer(bytes(heard), np.int16)).max() > LOUD:
                self.loud.append(time.perf_counter())
            frame.close()

    async def dial(self, url: str) -> None:
        offer = await self.peer.create_offer()
        await self.peer.set_local_description(offer)
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"content-type": "application/sdp"}
            told = await http.post(f"{url}/v1/realtime/calls", headers=headers, content=offer.sdp)
        told.raise_for_status()
        answer = webrtc.RTCSessionDescriptionInit("answer", told.text)
        await self.peer.set_remote_description(answer)

    async def speak(self, speech_ms: float) -> float:
        """A second of quiet, then speech, then quiet; returns when the last of it was sent."""
        spoken = np.concatenate(
            [quiet(1000, RATE_HZ), utterance(speech_ms, RATE_HZ), quiet(2500, RATE_HZ)]
        ).astype(np.int16)
        n_said, begun_s = RATE_HZ + int(speech_ms * RATE_HZ / 1000), time.perf_counter()
        said_s = 0.0
        for start in range(0, len(spoken) - FRAME + 1, FRAME):
            piece = spoken[start : start + FRAME].tobytes()
            self.microphone._generator.writeAudio(piece, RATE_HZ, 1, FRAME)
            if start < n_said <= start + FRAME:
                said_s = time.perf_counter()
            await asyncio.sleep(max(0.0, begun_s + (start + FRAME) / RATE_HZ - time.perf_counter()))
        return said_s


async def main(url: str, speech_ms: float) -> None:
    ear = Ear()
    dialled_s = time.perf_counter()
    await ear.dial(url)
    answered_s = time.perf_counter()
    await asyncio.wait_for(ear.created.wait(), MOST_S)
    created_s = ear.events[0][0]
    said_s = await ear.speak(speech_ms)
    after = [at_s for at_s in ear.loud if at_s > said_s]
    found = {
        "answer_ms": round(1000 * (answered_s - dialled_s)),
        "created_ms": round(1000 * (created_s - dialled_s)),
        "types": [kind for _, kind in ear.events],
        "gap_ms": round(1000 * (after[0] - said_s)) if after else None,
        "n_loud": len(after),
    }
    print(json.dumps(found), flush=True)
    ear.peer.close()
    await asyncio.sleep(0.3)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
