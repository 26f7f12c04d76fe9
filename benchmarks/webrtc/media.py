"""What the media of a call cost: ``python -m benchmarks.webrtc.media CALLS``.

Callers (libwebrtc) speak without a pause to peers in a process of their own that send all they hear
back, so both directions are busy. Told is what that process takes of a core, and of memory, for
each call: SRTP, RTP, Opus both ways, reports; no detector, no session, no model.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["WRTC_ALLOW_LOOPBACK"] = "1"

SETTLE_S, MEASURED_S = 4.0, 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Echo:
    """The far end of a peer: what comes goes back."""

    def __init__(self) -> None:
        self.peer: Any = None

    def hear(self, samples: bytes) -> None:
        self.peer.send_sound(samples)

    def take(self, event: str | bytes) -> None: ...

    def end(self, code: int, how: str) -> None: ...


async def serve_echoes() -> None:
    """Read an offer a line, write an answer a line, both as JSON, until the input ends."""
    from aiortc.rtcdtlstransport import RTCCertificate

    from voiceloop.doors.webrtc.mux import Mux
    from voiceloop.doors.webrtc.offer import parse_offer
    from voiceloop.doors.webrtc.peer import Peer

    loop = asyncio.get_running_loop()
    mux, certificate = Mux(loop.time), RTCCertificate.generateCertificate()
    await mux.open("127.0.0.1", 0)
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    connecting = []
    while line := await reader.readline():
        echo = Echo()
        echo.peer = Peer(parse_offer(json.loads(line)), mux, certificate, echo)
        print(json.dumps(echo.peer.answer(mux.candidates(""))), flush=True)
        connecting.append(asyncio.create_task(echo.peer.connect()))


class Caller:
    """One libwebrtc peer that speaks, and reads what comes back."""

    def __init__(self, webrtc: Any) -> None:
        self._webrtc = webrtc
        self.peer = webrtc.RTCPeerConnection()
        self.channel = self.peer.create_data_channel("oai-events")
        self.microphone = webrtc.MediaStreamTrackGenerator("audio")
        self.peer.add_track(self.microphone)

    async def dial(self, echoes: asyncio.subprocess.Process) -> None:
        assert echoes.stdin is not None and echoes.stdout is not None
        offer = await self.peer.create_offer()
        await self.peer.set_local_description(offer)
        echoes.stdin.write(json.dumps(offer.sdp).encode() + b"\n")
        answer = json.loads(await echoes.stdout.readline())
        described = self._webrtc.RTCSessionDescriptionInit("answer", answer)
        await self.peer.set_remote_description(described)

    async def speak(self, pieces: Iterator[bytes], rate_hz: int) -> None:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for n, piece in enumerate(pieces, 1):
            self.microphone._generator.writeAudio(piece, rate_hz, 1, len(piece) // 2)
            await asyncio.sleep(max(0.0, begun_s + n / 100 - loop.time()))


def _used(pid: int) -> tuple[float, float]:
    """Seconds of a core, and resident MB."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S, pages * PAGE_MB


async def measure(n_calls: int) -> dict[str, float]:
    import webrtc

    from clients.call.script import DEFAULT_CAST, load_call, load_utterances
    from clients.connection import RATE_HZ

    script = load_call()
    said = load_utterances(script, script.casts[DEFAULT_CAST][0], RATE_HZ)
    sound = b"".join(one.recording.samples.tobytes() for one in said)
    n_bytes = 2 * RATE_HZ // 100
    pieces = [sound[at : at + n_bytes] for at in range(0, len(sound) - n_bytes, n_bytes)]
    command = ("-m", "benchmarks.webrtc.media", "echo")
    echoes = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    callers, tasks = [], []

    async def add() -> None:
        caller = Caller(webrtc)
        await caller.dial(echoes)
        callers.append(caller)
        place = 137 * len(callers) % len(pieces)
        around = itertools.islice(itertools.cycle(pieces), place, None)
        tasks.append(asyncio.create_task(caller.speak(around, RATE_HZ)))

    await add()  # what is made once
    await asyncio.sleep(SETTLE_S)
    _, first_mb = _used(echoes.pid)
    for _ in range(n_calls - 1):
        await add()
    await asyncio.sleep(SETTLE_S)
    before_s, _ = _used(echoes.pid)
    await asyncio.sleep(MEASURED_S)
    after_s, all_mb = _used(echoes.pid)
    assert not any(task.done() for task in tasks)
    echoes.kill()
    return {
        "calls": n_calls,
        "core_percent": round(100.0 * (after_s - before_s) / MEASURED_S / n_calls, 2),
        "memory_mb": round((all_mb - first_mb) / (n_calls - 1), 2),
    }


def main() -> None:
    if sys.argv[1] == "echo":
        asyncio.run(serve_echoes())
        return
    print(json.dumps(asyncio.run(measure(int(sys.argv[1])))), flush=True)
    os._exit(0)  # the threads of libwebrtc do not end by themselves


if __name__ == "__main__":
    main()
