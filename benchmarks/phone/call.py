"""One bundled call by telephone, or over a WebSocket: ``python -m benchmarks.phone.call URL ...``.

Prints what was measured as one line of JSON. A process of its own, as of `benchmarks.webrtc`, so
that nothing but the line differs. The telephone is called by a scripted carrier or exchange; the
events come from a seat beside the call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from benchmarks.phone.peers import CALLED, CALLER, PEERS
from benchmarks.phone.telephone import PIECE_MS, Telephone
from benchmarks.webrtc.call import turn_of
from benchmarks.webrtc.ear import Ear
from clients.call.open_call import CallOptions
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.recording import Samples

PUBLIC_URL = "http://phone.test"  # what the server is told, and what its carriers sign
MOST_S = 10.0
REPLIES_APART_S = 0.5


class PhoneConnection(Ear):
    """The line of a simulated caller who has a telephone.

    cleared_s: when the server cleared its sound. told_and_heard_ms: of each reply that was cut,
    what the server says was heard, and what the telephone had played.
    """

    def __init__(self, server: str, name: str) -> None:
        super().__init__(f"http://{server}")
        self.phone = Telephone(PUBLIC_URL, PEERS[name](), self.came_out, at=self.url)
        self.cleared_s: list[float] = []
        self.told_and_heard_ms: list[tuple[float, float]] = []
        self._now = asyncio.get_running_loop().time
        self._beside: Any = None
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, server: str, name: str) -> PhoneConnection:
        line = cls(server, name)
        phone = line.phone
        if name == "asterisk":
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
        return line

    async def _read(self) -> None:
        try:
            while True:
                event = json.loads(await self._beside.recv())
                match event["type"]:
                    case "output_audio_buffer.cleared":
                        self.cleared_s.append(self._now())
                    case "conversation.item.truncated":
                        told_ms = float(event["audio_end_ms"])
                        self.told_and_heard_ms.append((told_ms, self._played_ms()))
                self.take(event, self._now())
        except ConnectionClosed:
            self._queue.put_nowait(None)

    async def send(self, event: dict[str, Any]) -> None:
        await self._beside.send(json.dumps(event))

    async def append_audio(self, samples: Samples) -> None:
        await self.phone.say(samples)

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
    script = load_call()
    utterances = load_utterances(script, chosen.voice, RATE_HZ)
    options = CallOptions(seed=chosen.seed)
    if chosen.line == "websocket":
        socket = await RealtimeConnection.open(f"ws://{chosen.server}", extras={"greeting": "1"})
        call = SimulatedCall(socket, utterances, options=options)
        return {"turns": [turn_of(turn, None) for turn in (await call.run()).turns]}
    line = await PhoneConnection.open(chosen.server, chosen.line)
    call = SimulatedCall(line, utterances, options=options)  # type: ignore[arg-type]
    result = await call.run()
    return {
        "turns": [turn_of(turn, None) for turn in result.turns],
        "clear_ms": [round(one, 1) for one in line.clear_to_silence_ms()],
        "told_and_heard_ms": line.told_and_heard_ms,
        "errors": list(result.errors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.phone.call", description=__doc__)
    parser.add_argument("server", help="host:port")
    parser.add_argument("--voice", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--line", required=True, choices=("websocket", "twilio", "asterisk"))
    print(json.dumps(asyncio.run(play(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
