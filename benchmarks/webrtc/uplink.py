"""How late a caller's last sound is: ``python -m benchmarks.webrtc.uplink PACKET_MS``.

libwebrtc says bursts of noise to a peer in the same process. Prints how long after the last of a
burst was written its last loud frame was decoded, as one line of JSON: what the caller's own
encoder adds to every gap, whatever the server does. PACKET_MS: what our answer asks for.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

import numpy as np

from benchmarks.webrtc.media import Caller
from clients.report.percentiles import Distribution

N_BURSTS = 100
RATE_HZ = 24_000
PIECE = RATE_HZ // 50
LOUD = 500.0  # of int16: RMS of a frame
EARLY_S, LATE_S = 0.15, 0.25


class Listener:
    """The far end of a peer: when each loud frame was decoded."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.loud_s: list[float] = []

    def hear(self, samples: bytes) -> None:
        sound = np.frombuffer(samples, "<i2").astype(np.float64)
        if np.sqrt((sound * sound).mean()) > LOUD:
            self.loud_s.append(self._loop.time())

    def take(self, event: str | bytes) -> None: ...

    def end(self, code: int, how: str) -> None: ...


class Mouth:
    """Writes 20 ms at a time, by the clock, as the simulated caller does."""

    def __init__(self, microphone: Any) -> None:
        self._write = microphone._generator.writeAudio
        self._loop = asyncio.get_running_loop()
        self._due_s = self._loop.time()

    async def say(self, sound: np.ndarray[Any, np.dtype[np.int16]]) -> float:
        """Returns when the last of it was written."""
        written_s = 0.0
        for start in range(0, len(sound), PIECE):
            self._due_s += 0.02
            await asyncio.sleep(max(0.0, self._due_s - self._loop.time()))
            for at in (start, start + PIECE // 2):
                piece = sound[at : at + PIECE // 2]
                self._write(piece.tobytes(), RATE_HZ, 1, len(piece))
            written_s = self._loop.time()
        return written_s


async def measure(packet_ms: int) -> dict[str, Any]:
    import webrtc
    from aiortc.rtcdtlstransport import RTCCertificate

    from voiceloop.doors.webrtc.mux import Mux
    from voiceloop.doors.webrtc.offer import parse_offer
    from voiceloop.doors.webrtc.peer import Peer

    loop, draws = asyncio.get_running_loop(), random.Random(1)
    mux, far, caller = Mux(loop.time), Listener(loop), Caller(webrtc)
    await mux.open("127.0.0.1", 0)
    offer = await caller.peer.create_offer()
    await caller.peer.set_local_description(offer)
    peer = Peer(parse_offer(offer.sdp), mux, RTCCertificate.generateCertificate(), far)
    answer = peer.answer(mux.candidates("")).replace("a=ptime:20", f"a=ptime:{packet_ms}")
    described = webrtc.RTCSessionDescriptionInit("answer", answer)
    await caller.peer.set_remote_description(described)
    connecting = asyncio.create_task(peer.connect())
    mouth = Mouth(caller.microphone)
    await mouth.say(np.zeros(2 * RATE_HZ, np.int16))
    await connecting
    noise = np.random.default_rng(0).normal(0, 4000, RATE_HZ).clip(-32000, 32000).astype(np.int16)
    late_ms = []
    for _ in range(N_BURSTS):
        said_s = await mouth.say(noise[: PIECE * draws.randint(8, 12)])
        await mouth.say(np.zeros(PIECE * draws.randint(15, 20), np.int16))
        heard = [at for at in far.loud_s if said_s - EARLY_S < at < said_s + LATE_S]
        late_ms += [1000.0 * (heard[-1] - said_s)] if heard else []
    found = Distribution.of(late_ms)
    return {"packet_ms": packet_ms, "n": found.n, "p50": found.p50, "p95": found.p95}


def main() -> None:
    print(json.dumps(asyncio.run(measure(int(sys.argv[1])))), flush=True)
    os._exit(0)  # the threads of libwebrtc do not end by themselves


if __name__ == "__main__":
    main()
