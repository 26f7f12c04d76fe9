"""Hostile clients of the WebRTC door: what is no offer, offers again and again, strangers' packets.

One function a kind, of the shape of `clients.py`.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import time
from contextlib import suppress

import httpx

from clients.server_process import ServerProcess

PATH = "/v1/realtime/calls"
PRINT = ":".join(["AB"] * 32)
# The least that is taken; whoever sends it knows no key and never comes.
OFFER = "\r\n".join(
    (
        "v=0", "o=- 1 1 IN IP4 127.0.0.1", "s=-", "t=0 0", "a=group:BUNDLE 0",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111", "c=IN IP4 0.0.0.0", "a=mid:0", "a=ice-ufrag:abcd",
        "a=ice-pwd:abcdefghijklmnopqrstuv", f"a=fingerprint:sha-256 {PRINT}", "a=setup:actpass",
        "a=rtpmap:111 opus/48000/2", "",
    )
)  # fmt: skip
FORGED = (
    OFFER.replace("sha-256", "md5"),
    OFFER.replace("m=audio 9", "m=audio 99999999999999999999"),
    OFFER.replace("opus/48000/2", "PCMU/8000"),
    OFFER + "a=x:" + "y" * 70_000 + "\r\n",
    OFFER + "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n" * 9_000,
    "v=0\r\n" + "a=candidate:1 1 udp 1 10.0.0.1 22 typ host\r\n" * 1_400,
    "not an offer",
)
PAUSE_S = 0.02
PACKETS_AT_ONCE = 50  # each 10 ms: 5,000 a second, a hundred calls' sound


async def _offer(server: ServerProcess, texts: tuple[str, ...], for_s: float) -> list[str]:
    """Post these over and over; the answers that came."""
    answers, until_s, n = [], time.monotonic() + for_s, 0
    headers = {"content-type": "application/sdp"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        while time.monotonic() < until_s:
            with suppress(httpx.HTTPError):
                told = await client.post(PATH, headers=headers, content=texts[n % len(texts)])
                answers += [told.text] if told.status_code == 201 else []
            n += 1
            await asyncio.sleep(PAUSE_S)
    return answers


async def forged_offers(server: ServerProcess, for_s: float) -> None:
    """Offers of weak fingerprints, wild numbers, other codecs, thousands of lines."""
    assert not await _offer(server, FORGED, for_s)


async def oversized_offers(server: ServerProcess, for_s: float) -> None:
    await _offer(server, (OFFER + "a=x:" + "y" * 2_000_000,), for_s)


async def replayed_offers(server: ServerProcess, for_s: float) -> None:
    """One offer again and again, whose peer never connects."""
    await _offer(server, (OFFER,), for_s)


async def strangers_packets(server: ServerProcess, for_s: float) -> None:
    """Checks that nobody has signed, and sound of no call, at the port of all calls."""
    found = [re.search(r"127\.0\.0\.1 (\d+) typ host", one) for one in
             await _offer(server, (OFFER,), 0.2)]  # fmt: skip
    port = next((int(one[1]) for one in found if one), None)
    if port is None:
        return
    draws = random.Random(1)
    check = struct.pack(">HHI", 1, 16, 0x2112A442) + draws.randbytes(12)
    check += struct.pack(">HH", 6, 9) + b"abcd:efgh" + bytes(3)
    sound = struct.pack(">BBHII", 0x80, 111, 1, 1, 1) + draws.randbytes(80)
    until_s = time.monotonic() + for_s
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        sending.setblocking(False)
        while time.monotonic() < until_s:
            for n in range(PACKETS_AT_ONCE):
                with suppress(OSError):
                    sending.sendto(check if n % 2 else sound, ("127.0.0.1", port))
            await asyncio.sleep(0.01)


OFFER_KINDS = (forged_offers, oversized_offers, replayed_offers, strangers_packets)
