"""Many calls that come and go: ``python -m benchmarks.webrtc.crowd PORT PID CALLS AT_ONCE``.

Callers (libwebrtc) dial a running server, are greeted aloud, and leave: one of two closes its
connection, the other is hung up over HTTP. Prints what the server holds more than before as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.soak.processes import held, n_descriptors
from clients.server_process import ServerProcess

os.environ["WRTC_ALLOW_LOOPBACK"] = "1"

MOST_S = 20.0
HEARD_S = 1.0
SETTLE_S = 5.0  # a server notices within that, that a peer has gone
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


async def call(webrtc: Any, url: str, *, hangs_up: bool) -> None:
    """One call. Raises: TimeoutError, httpx.HTTPError."""
    peer = webrtc.RTCPeerConnection()
    channel = peer.create_data_channel("oai-events")
    microphone = webrtc.MediaStreamTrackGenerator("audio")
    peer.add_track(microphone)
    is_heard, is_over = asyncio.Event(), asyncio.Event()

    def take(message: Any) -> None:
        if json.loads(message.data)["type"] == "output_audio_buffer.started":
            is_heard.set()

    channel.on("message", take)
    channel.on("close", lambda *_: is_over.set())
    try:
        offer = await peer.create_offer()
        await peer.set_local_description(offer)
        async with httpx.AsyncClient(trust_env=False) as http:
            headers = {"content-type": "application/sdp"}
            told = await http.post(
                f"{url}?greeting=1", headers=headers, content=offer.sdp, timeout=MOST_S
            )
            told.raise_for_status()
            answer = webrtc.RTCSessionDescriptionInit("answer", told.text)
            await peer.set_remote_description(answer)
            await asyncio.wait_for(is_heard.wait(), MOST_S)
            await asyncio.sleep(HEARD_S)
            if hangs_up:
                call_id = told.headers["location"].rpartition("/")[2]
                (await http.post(f"{url}/{call_id}/hangup")).raise_for_status()
                await asyncio.wait_for(is_over.wait(), MOST_S)
    finally:
        peer.close()


async def run_all(n_calls: int, at_once: int, one: Callable[[int], Awaitable[None]]) -> None:
    places = asyncio.Semaphore(at_once)

    async def in_place(number: int) -> None:
        async with places:
            await one(number)

    async with asyncio.TaskGroup() as group:
        for number in range(n_calls):
            group.create_task(in_place(number))


def n_ports(pid: int) -> int:
    """UDP sockets of a process."""
    own = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [row.split() for name in ("udp", "udp6")
            for row in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]]  # fmt: skip
    return sum(f"socket:[{row[9]}]" in own for row in rows)


def _statm(pid: int) -> str:
    return Path(f"/proc/{pid}/statm").read_text()


async def holds(server: ServerProcess) -> dict[str, float]:
    pages = int(_statm(server.pid).split()[1])
    return {
        "ports": n_ports(server.pid),
        "descriptors": n_descriptors(server.pid),
        **await held(server),
        "memory_mb": round(pages * PAGE_MB, 2),
    }


async def measure(port: int, pid: int, n_calls: int, at_once: int) -> dict[str, float]:
    import webrtc

    server, url = ServerProcess(pid, port, 0.0), f"http://127.0.0.1:{port}/v1/realtime/calls"

    async def one(number: int) -> None:
        await call(webrtc, url, hangs_up=number % 2 == 0)

    await run_all(3 * at_once, at_once, one)  # memory is touched for the first time
    await asyncio.sleep(SETTLE_S)
    before = await holds(server)
    await run_all(n_calls, at_once, one)
    await asyncio.sleep(SETTLE_S)
    after = await holds(server)
    return {name: round(after[name] - before[name], 2) for name in before}


def main() -> None:
    port, pid, n_calls, at_once = map(int, sys.argv[1:5])
    print(json.dumps(asyncio.run(measure(port, pid, n_calls, at_once))), flush=True)
    os._exit(0)  # the threads of libwebrtc do not end by themselves


if __name__ == "__main__":
    main()
