"""One bundled call by telephone, or over a WebSocket: ``python -m benchmarks.phone.call URL ...``.

Prints what was measured as one line of JSON. A process of its own, as of `benchmarks.webrtc`, so
that nothing but the line differs. The telephone is called by a scripted carrier or exchange; the
events come from a seat beside the call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

import numpy as np
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.phone.callers import utterances_of
from benchmarks.phone.peers import CALLED, CALLER, PEERS
from benchmarks.phone.sip_line import SipStream
from benchmarks.phone.telephone import PIECE_MS, Telephone, is_loud
from benchmarks.webrtc.call import QUERY, turn_of
from benchmarks.webrtc.ear import Ear
from clients.call.open_call import CallOptions
from clients.call.result import TurnResult
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.recording import Samples

PUBLIC_URL = "http://phone.test"  # what the server is told, and what its carriers sign
MOST_S = 10.0
ECHO_GAIN = 10.0 ** (-25.0 / 20.0)
MOST_DRIFT_S = 0.1
TIMELINE = {
    "type": "session.update",
    "session": {"type": "realtime", "voiceloop": {"timeline": True}},
}
RECENT_PIECES = 40  # 0.8 s of what was played: more than the longest echo
SPOKE_BEFORE_S = 2.0  # whoever said nothing for so long has interrupted nobody
REPLIES_APART_S = 0.5


class LineEcho:
    """What the telephone network gives back of what was played: after_ms later, and softer."""

    def __init__(self, after_ms: float) -> None:
        self._after_s = after_ms / 1000.0
        self._sent_s = 0.0  # by the line's own clock

    def added(
        self, samples: Samples, heard: Sequence[tuple[float, Samples]], now_s: float
    ) -> Samples:
        """The caller's samples at 24 kHz, which end now, with the echo. heard: by when it began."""
        if not self._after_s:
            return samples
        whole = samples.astype(np.float64)
        if abs(now_s - self._sent_s) > MOST_DRIFT_S:  # a line has one clock, whoever is late here
            self._sent_s = now_s
        began_s = self._sent_s - self._after_s
        self._sent_s += len(samples) / RATE_HZ
        for at_s, piece in reversed(heard[-RECENT_PIECES:]):
            start = round((at_s - began_s) * RATE_HZ)
            begin, end = max(0, start), min(len(whole), start + len(piece))
            if begin < end:
                whole[begin:end] += ECHO_GAIN * piece[begin - start : end - start]
        return np.clip(np.rint(whole), -32768, 32767).astype(np.int16)


class PhoneConnection(Ear):
    """The line of a simulated caller who has a telephone.

    cleared_s: when the server cleared its sound. told_and_heard_ms: of each reply that was cut,
    what the server says was heard, and what the telephone had played. echo_ms: after so long what
    was played comes back softly; 0: never.
    """

    def __init__(self, server: str, name: str, echo_ms: float = 0.0) -> None:
        super().__init__(f"http://{server}")
        self._echo = LineEcho(echo_ms)
        self._spoke_s = 0.0  # when the caller's last loud sample was sent
        self.interrupted_itself = 0
        self.phone = Telephone(PUBLIC_URL, PEERS[name](), self.came_out, at=self.url)
        self.cleared_s: list[float] = []
        self.told_and_heard_ms: list[tuple[float, float]] = []
        self._now = asyncio.get_running_loop().time
        self._beside: Any = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, server: str, name: str, echo_ms: float = 0.0, sip_port: int = 0
    ) -> PhoneConnection:
        line = cls(server, name, echo_ms)
        phone = line.phone
        if name == "sip":
            stream = await SipStream.dial(sip_port)
            phone.peer.call = stream.call_id
            await phone.attach(stream)
        elif name == "asterisk":
            told = {"from": CALLER, "to": CALLED, "call": phone.peer.call}
            path = f"/v1/phone/asterisk/stream?{urlencode(told)}"
            await phone.open(f"ws{PUBLIC_URL.removeprefix('http')}{path}", "")
        else:
            await phone.dial()
        address = f"ws://{server}/v1/realtime?call_id={phone.peer.call}"
        async with asyncio.timeout(MOST_S):
            while line._beside is None:
                try:
                    line._beside = await connect(address)
                except Exception:  # the call has not begun yet
                    await asyncio.sleep(0.02)
        line._reading = asyncio.create_task(line._read())
        await line.send(TIMELINE)  # it says which answers were taken back, and their fade-ins
        return line

    async def _read(self) -> None:
        try:
            while True:
                event = json.loads(await self._beside.recv())
                match event["type"]:
                    case "output_audio_buffer.cleared":
                        self.cleared_s.append(self._now())
                        self.interrupted_itself += self._now() - self._spoke_s > SPOKE_BEFORE_S
                    case "conversation.item.truncated":
                        told_ms = float(event["audio_end_ms"])
                        self.told_and_heard_ms.append((told_ms, self._played_ms()))
                self.take(event, self._now())
        except ConnectionClosed:
            self._queue.put_nowait(None)

    async def send(self, event: dict[str, Any]) -> None:
        await self._beside.send(json.dumps(event))

    async def append_audio(self, samples: Samples) -> None:
        if is_loud(samples):
            self._spoke_s = self._now()
        await self.phone.say(self._echo.added(samples, self.phone.heard, self._now()))

    async def close(self) -> None:
        await self.phone.hang_up()
        await self._beside.close()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)

    def _played_ms(self) -> float:
        """How much of the last reply has been played: the pieces behind the last long silence."""
        at, n_pieces = self._now(), 0
        for played_at, _ in reversed(self.phone.heard):
            if at - played_at > REPLIES_APART_S and n_pieces:
                break
            n_pieces, at = n_pieces + 1, played_at
        return PIECE_MS * n_pieces

    def clear_to_silence_ms(self) -> list[float]:
        """From each clear to the end of the last loud piece, the one that was playing with it."""
        found, piece_s = [], PIECE_MS / 1000.0
        for cleared_s in self.cleared_s:
            silent_s = cleared_s
            for at in self.phone.loud_at(cleared_s - piece_s):
                if at > silent_s + 0.1:  # what follows is another reply
                    break
                silent_s = max(silent_s, at + piece_s)
            found.append(1000.0 * (silent_s - cleared_s))
        return found


async def play(chosen: argparse.Namespace) -> dict[str, Any]:
    utterances = utterances_of(chosen.voice)
    options = CallOptions(seed=chosen.seed)
    if chosen.line == "websocket":
        socket = await RealtimeConnection.open(f"ws://{chosen.server}", extras=QUERY)
        call = SimulatedCall(socket, utterances, options=options)
        return {"turns": [told_of(turn) for turn in (await call.run()).turns]}
    line = await PhoneConnection.open(chosen.server, chosen.line, chosen.echo_ms, chosen.sip_port)
    call = SimulatedCall(line, utterances, options=options)  # type: ignore[arg-type]
    result = await call.run()
    return {
        "turns": [told_of(turn) for turn in result.turns],
        "clear_ms": [round(one, 1) for one in line.clear_to_silence_ms()],
        "told_and_heard_ms": line.told_and_heard_ms,
        "interrupted_itself": line.interrupted_itself,
        "errors": list(result.errors),
    }


def told_of(turn: TurnResult) -> dict[str, Any]:
    return {**turn_of(turn, None), "answer": turn.answer, "endpoint": turn.endpoint}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phone.call", description=__doc__)
    parser.add_argument("server", help="host:port")
    parser.add_argument("--voice", required=True, help="as of `callers.utterances_of`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--echo-ms", type=float, default=0.0)
    parser.add_argument("--sip-port", type=int, default=0)
    lines = ("websocket", "twilio", "asterisk", "sip")
    parser.add_argument("--line", required=True, choices=lines)
    print(json.dumps(asyncio.run(play(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
