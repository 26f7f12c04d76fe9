"""What reads bytes of strangers, each as a function that takes any: it returns, or raises what its
docstring says. With corpora: inputs that are read to their end, and what fuzzing has found.

    python -m tests.hostile.fuzzed_bytes NAME --seconds 60

fuzzes one by coverage, and keeps what reached something new in `corpus/NAME.txt`, in base64. It
needs atheris (`pip install atheris==3.0.0`), which the extra dev does not bring.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request

from voiceloop.access import client_secrets, sites
from voiceloop.access.client_secrets import ClientSecrets
from voiceloop.access.keys import KeyRing
from voiceloop.access.signing import to_text, written
from voiceloop.backends import ChatMessage, GenerateParams, Partial, Speech, VoiceOptions
from voiceloop.cluster import handshake
from voiceloop.cluster.handshake import Challenge, HandshakeError, Join, Welcome
from voiceloop.doors.rtp import rtcp
from voiceloop.doors.rtp.packet import MalformedPacket, RtpPacket
from voiceloop.doors.webrtc.offer import parse_offer
from voiceloop.errors import VoiceLoopError
from voiceloop.http.transcription import _read_form
from voiceloop.realtime.conversation import Conversation, SpokenReplies
from voiceloop.realtime.settings import SessionSettings
from voiceloop.resume import ticket
from voiceloop.resume.snapshot import changes_of, pack, snapshot_of
from voiceloop.resume.ticket import Tickets
from voiceloop.workers.messages import (
    Commit,
    FeedAudio,
    FrameError,
    FrameReader,
    Heartbeat,
    OpenVoice,
    StreamEvent,
    decode_from_worker,
    decode_to_worker,
    encode,
)

CORPUS = Path(__file__).parent / "corpus"
NOW_S = 1_000_000.0
KEY, TENANT = b"a key of this test", "tenant"
MOST_BYTES = 4096  # of one input
MOST_KEPT = 100  # of one reader, the shortest

Target = Callable[[bytes], None]


def _now() -> float:
    return NOW_S


RING = KeyRing((), shared=("shared",))
SECRETS = ClientSecrets([KEY], _now)
SITES = KeyRing(("a key",))
OWN = SessionSettings(instructions="Be kind.")
LOOP = asyncio.new_event_loop()


def to_worker(data: bytes) -> None:
    _frames(data, decode_to_worker)


def from_worker(data: bytes) -> None:
    _frames(data, decode_from_worker)


def _frames(data: bytes, decode: Callable[[bytes], Any]) -> None:
    """However it is cut: first as one frame's body, then as what a socket brings."""
    try:
        decode(data)
    except FrameError:
        pass
    try:
        for body in FrameReader().feed(data):
            try:
                decode(body)
            except FrameError:
                pass
    except FrameError:
        pass


def worker_handshake(data: bytes) -> None:
    for kind in (Challenge, Join, Welcome):
        try:
            word = handshake.decode(data, kind)
            if isinstance(word, Join):
                handshake.admit([KEY], b"nonce", word, b"")
            if isinstance(word, Challenge):
                handshake.join(KEY, word, b"nonce", "gateway", b"")
        except HandshakeError:
            pass


def tickets(data: bytes) -> None:
    """As it comes; and as if our own key had signed it: what is inside is read too."""
    server = Tickets(RING, _now)
    claims = ticket.Claims("call", int(NOW_S) + 60, 1, ticket._digest(data))
    packed = msgspec.msgpack.encode(claims)
    carried = f"{_head(packed)}.{to_text(data)}"
    for value in (data.decode("latin-1"), carried, f"{_head(data)}.{to_text(b'')}"):
        try:
            server.read(value, TENANT)
        except VoiceLoopError:
            pass


def _head(packed: bytes) -> str:
    mac = RING.sign_ticket(TENANT, ticket._bound(TENANT, packed))
    return written(ticket.PREFIX, packed, mac)


def secrets(data: bytes) -> None:
    """As it comes, and as if our own key had signed it, packed or not."""
    for value in (data.decode("latin-1"), *map(_secret, (data, zlib.compress(data)))):
        try:
            SECRETS.read(value)
        except VoiceLoopError:
            pass


def _secret(body: bytes) -> str:
    return written(client_secrets.PREFIX, body, SECRETS.signer.sign(KEY, body))


def site_ids(data: bytes) -> None:
    for value in (data.decode("latin-1"), written(sites.PREFIX, data, b"mac")):
        try:
            body, _ = sites.read(value)
            sites.unpack(body)
        except VoiceLoopError:
            pass


def multipart(data: bytes) -> None:
    LOOP.run_until_complete(_multipart(data))


async def _multipart(data: bytes) -> None:
    pieces = [data[: len(data) // 2], data[len(data) // 2 :]]

    async def receive() -> dict[str, Any]:
        body = pieces.pop(0) if pieces else b""
        return {"type": "http.request", "body": body, "more_body": bool(pieces)}

    headers = [(b"content-type", b"multipart/form-data; boundary=x")]
    request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
    try:
        async with _read_form(request, "en"):
            pass
    except VoiceLoopError:
        pass


def session_descriptions(data: bytes) -> None:
    try:
        parse_offer(data.decode("latin-1"))
    except VoiceLoopError:
        pass


def rtp_packets(data: bytes) -> None:
    for read in (RtpPacket.parse, rtcp.parse):
        try:
            read(data)
        except MalformedPacket:
            pass


TARGETS: dict[str, Target] = {
    read.__name__: read
    for read in (
        to_worker, from_worker, worker_handshake, tickets, secrets, site_ids, multipart,
        session_descriptions, rtp_packets,
    )
}  # fmt: skip

FORM = (
    b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nany\r\n'
    b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\x00\r\n--x--\r\n"
)
OFFER = (
    b"v=0\r\no=- 1 2 IN IP4 127.0.0.1\r\ns=-\r\nt=0 0\r\na=group:BUNDLE 0\r\n"
    b"a=ice-ufrag:abcd\r\na=ice-pwd:abcdefghijklmnopqrstuvwx\r\na=setup:actpass\r\n"
    b"a=fingerprint:sha-256 " + b":".join([b"AA"] * 32) + b"\r\n"
    b"m=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=mid:0\r\na=rtcp-mux\r\na=sendrecv\r\n"
    b"a=rtpmap:111 opus/48000/2\r\n"
)


def _well_formed() -> dict[str, list[bytes]]:
    """What each of them reads to its end, made as its other end makes it."""
    conversation = Conversation()
    taken = snapshot_of(changes_of(OWN, OWN), conversation, SpokenReplies(conversation))
    claims = client_secrets.Claims(b"n" * 12, int(NOW_S) + 60, {"instructions": "Be kind."})
    said = (ChatMessage("user", "hello"),)
    return {
        "to_worker": [
            encode(FeedAudio("sess_1/turn_1/0", b"\0\1")) + encode(OpenVoice("v", VoiceOptions())),
            encode(Commit("s", said, GenerateParams(stop=("x",))))[4:],
        ],
        "from_worker": [
            encode(StreamEvent("s", Partial(2, ("a",), ("b",), True), 12.5)),
            encode(StreamEvent("s", Speech(b"\1\2", 24_000)))[4:]
            + encode(Heartbeat(1, 2, True, 4)),
        ],
        "worker_handshake": [
            handshake.encode(word)[4:]
            for word in (Challenge(3, b"n"), Join(3, b"n", b"p", "g"), Welcome(b"p"))
        ],
        "tickets": [pack(taken), f"{_head(b'')}.".encode()],
        "secrets": [
            msgspec.msgpack.encode(claims),
            _secret(client_secrets._packed(claims)).encode(),
        ],
        "site_ids": [sites.pack(sites.Site(("https://a.example",), {}, 5, 60))],
        "multipart": [FORM],
        "session_descriptions": [OFFER],
        "rtp_packets": [bytes([128, 111, 0, 1]) + bytes(12), bytes([129, 200, 0, 6]) + bytes(24)],
    }


WELL_FORMED = _well_formed()


def corpus(name: str) -> list[bytes]:
    path = CORPUS / f"{name}.txt"
    lines = path.read_text().split() if path.is_file() else []
    return [*WELL_FORMED[name], *map(b64decode, lines)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for n, data in enumerate(corpus(chosen.name)):
            (Path(folder) / str(n)).write_bytes(data)
        fuzzing = [sys.executable, "-m", "tests.hostile.by_coverage", chosen.name, folder]
        bounds = [f"-max_total_time={chosen.seconds}", f"-max_len={MOST_BYTES}", "-timeout=5"]
        code = subprocess.run([*fuzzing, *bounds], check=False).returncode
        found = {path.read_bytes() for path in Path(folder).iterdir()} - set(
            WELL_FORMED[chosen.name]
        )
    kept = sorted(found, key=lambda data: (len(data), data))[:MOST_KEPT]
    CORPUS.mkdir(exist_ok=True)
    text = "".join(f"{b64encode(data).decode()}\n" for data in kept)
    (CORPUS / f"{chosen.name}.txt").write_text(text)
    return code


if __name__ == "__main__":
    sys.exit(main())
