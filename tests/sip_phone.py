"""A telephone of the tests: it writes SIP by hand, on a socket of its own, and hears what comes."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from audio import codec
from audio.frames import VOICE_HZ
from audio.resample import Resampler
from voiceloop.doors.rtp.packet import RtpPacket

PCMU = "0 101"
SDP = (
    "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\n"
    "m=audio {port} RTP/AVP {types}\r\na=rtpmap:101 telephone-event/8000\r\na={direction}\r\n"
)


class Message:
    """One that came: its first line, its headers by lower-case name, its body."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.decode().partition("\r\n\r\n")
        self.first, *lines = head.split("\r\n")
        self.headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            self.headers.setdefault(name.strip().lower(), []).append(value.strip())

    @property
    def status(self) -> int:
        """0: it is a request."""
        return int(self.first.split()[1]) if self.first.startswith("SIP/") else 0

    @property
    def method(self) -> str:
        return self.header("cseq").split()[1]

    def header(self, name: str) -> str:
        return self.headers.get(name, [""])[0]

    @property
    def sound_port(self) -> int:
        line = next(one for one in self.body.split("\r\n") if one.startswith("m=audio"))
        return int(line.split()[1])


class _Socket(asyncio.DatagramProtocol):
    def __init__(self, came: Any) -> None:
        self._came = came

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._came(data)


class Telephone:
    """`open`, then `call` or single messages. heard: what came as sound, packet by packet."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.server = (host, port)
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.heard: list[tuple[float, RtpPacket]] = []
        self.call_id, self.tag, self.to_tag = secrets.token_hex(8), secrets.token_hex(4), ""
        self._cseq = itertools.count(1)
        self.sound_to: tuple[str, int] | None = None
        self.sequence, self.stamp = 65_000, 2**32 - 3000
        self.on_packet: Callable[[RtpPacket], object] = lambda packet: None

    async def open(self, at: str = "127.0.0.1") -> Telephone:
        loop = asyncio.get_running_loop()
        self._clock = loop.time
        self.sip, _ = await loop.create_datagram_endpoint(
            lambda: _Socket(lambda data: self.messages.put_nowait(Message(data))),
            local_addr=(at, 0),
        )
        self.rtp, _ = await loop.create_datagram_endpoint(
            lambda: _Socket(self._hear), local_addr=(at, 0)
        )
        self.at = self.sip.get_extra_info("sockname")
        self.rtp_port = self.rtp.get_extra_info("sockname")[1]
        return self

    def close(self) -> None:
        self.sip.close()
        self.rtp.close()

    def _hear(self, data: bytes) -> None:
        packet = RtpPacket.parse(data)
        self.heard.append((self._clock(), packet))
        self.on_packet(packet)

    # --- messages ---

    def sdp(self, types: str = PCMU, direction: str = "sendrecv") -> str:
        return SDP.format(port=self.rtp_port, types=types, direction=direction)

    def request(
        self, method: str, body: str = "", *more: str, cseq: int | None = None, branch: str = ""
    ) -> str:
        """The text of a request; sent by `write`."""
        self.cseq = next(self._cseq) if cseq is None else cseq
        self.branch = branch or f"z9hG4bK{secrets.token_hex(6)}"
        to = f"<sip:+4930123@{self.server[0]}>" + (f";tag={self.to_tag}" if self.to_tag else "")
        kind = ["Content-Type: application/sdp"] if body.startswith("v=0") else []
        return "\r\n".join(
            [
                f"{method} sip:+4930123@{self.server[0]}:{self.server[1]} SIP/2.0",
                f"Via: SIP/2.0/UDP {self.at[0]}:{self.at[1]};branch={self.branch};rport",
                f'From: "Ann" <sip:+4940555@{self.at[0]}>;tag={self.tag}',
                f"To: {to}",
                f"Call-ID: {self.call_id}",
                f"CSeq: {self.cseq} {method}",
                f"Contact: <sip:+4940555@{self.at[0]}:{self.at[1]}>",
                "Max-Forwards: 70",
                *kind,
                *more,
                f"Content-Length: {len(body)}",
                "",
                body,
            ]
        )

    def write(self, text: str) -> None:
        self.sip.sendto(text.encode(), self.server)

    async def ask(self, method: str, body: str = "", *more: str) -> Message:
        """Send a request; returns its final answer, unacknowledged."""
        self.write(self.request(method, body, *more))
        return await self.final(method)

    async def next(self, within_s: float = 5.0) -> Message:
        async with asyncio.timeout(within_s):
            return await self.messages.get()

    async def final(self, method: str) -> Message:
        while True:
            message = await self.next()
            if message.status >= 200 and message.method == method:
                return message

    async def asked(self, method: str, status: int = 200) -> Message:
        """The next request of this method, answered with this."""
        message = await self.asked_for(method)
        self.answer(message, status)
        return message

    async def asked_for(self, method: str) -> Message:
        """The next request of this method, not answered yet."""
        while True:
            message = await self.next()
            if not message.status and message.method == method:
                return message

    def answer(self, request: Message, status: int, body: str = "", *more: str) -> None:
        to = request.header("to")
        to += "" if "tag=" in to else f";tag={self.tag}"
        lines = [f"SIP/2.0 {status} Whatever"]
        lines += [f"Via: {via}" for via in request.headers["via"]]
        lines += [f"From: {request.header('from')}", f"To: {to}"]
        lines += [f"Call-ID: {request.header('call-id')}", f"CSeq: {request.header('cseq')}"]
        lines += [f"Contact: <sip:phone@{self.at[0]}:{self.at[1]}>", *more]
        lines += ["Content-Type: application/sdp"] if body else []
        self.sip.sendto(
            "\r\n".join([*lines, f"Content-Length: {len(body)}", "", body]).encode(), self.server
        )

    def acknowledge(self, answer: Message, body: str = "") -> None:
        """An ACK: of success a transaction of its own, of failure the INVITE's."""
        cseq = int(answer.header("cseq").split()[0])
        branch = "" if answer.status < 300 else self.branch
        to_tag = answer.header("to").partition("tag=")[2]
        was, self.to_tag = self.to_tag, to_tag
        self.write(self.request("ACK", body, cseq=cseq, branch=branch))
        if answer.status >= 300:
            self.to_tag = was

    async def call(self, types: str = PCMU, *more: str) -> Message:
        """Call, and acknowledge; returns the answer, whatever it is."""
        answer = await self.ask("INVITE", self.sdp(types), *more)
        self.acknowledge(answer)
        if answer.status == 200:
            self.sound_to = (self.server[0], answer.sound_port)
        return answer

    # --- sound ---

    def packet(self, payload: bytes, kind: int = 0, lasts: int = 160, marker: bool = False) -> None:
        packet = RtpPacket(
            kind, self.sequence & 0xFFFF, self.stamp & 0xFFFFFFFF, 7, marker, payload
        )
        assert self.sound_to is not None
        self.rtp.sendto(packet.serialize(), self.sound_to)
        self.sequence += 1
        self.stamp += lasts

    async def say(self, samples: NDArray[np.int16]) -> None:
        """Samples at 24 kHz as PCMU, in time."""
        narrow = codec.encode(Resampler(VOICE_HZ, 8_000).push(samples), "pcmu")
        start_s = self._clock()
        for number, at in enumerate(range(0, len(narrow) - 159, 160)):
            await asyncio.sleep(max(0.0, start_s + 0.02 * number - self._clock()))
            self.packet(narrow[at : at + 160])

    async def be_quiet(self, seconds: float) -> None:
        await self.say(np.zeros(round(seconds * VOICE_HZ), np.int16))

    def press(self, key: int, kind: int = 101) -> None:
        """A key as four packets and three that end it, at one time."""
        stamp = self.stamp
        for number in range(7):
            end = 0x80 if number >= 4 else 0
            lasts = min(number + 1, 5) * 160
            self.stamp = stamp
            self.packet(bytes([key, end | 10]) + lasts.to_bytes(2, "big"), kind, 0, number == 0)
        self.stamp = stamp + 800

    def loud_s(self, level: float = 300.0) -> list[float]:
        """When packets came that somebody would hear, of PCMU."""
        return [
            at_s
            for at_s, packet in self.heard
            if packet.payload_type == 0
            and np.abs(codec.decode(packet.payload, "pcmu").astype(np.float64)).mean() > level
        ]
