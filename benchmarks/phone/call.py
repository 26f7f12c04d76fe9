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
from benchmarks.phone.telephone import Telephone
from benchmarks.webrtc.call import Cuts, turn_of
from benchmarks.webrtc.ear import Ear
from clients.call.open_call import CallOptions
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.recording import Samples

PUBLIC_URL = "http://phone.test"  # what the server is told, and what its carriers sign
MOST_S = 10.0


class PhoneConnection(Ear):
    """The line of a simulated caller who has a telephone. cleared_s, silent_s: of each
    interruption, when the server cleared its sound, and when the last of it was heard."""

    def __init__(self, server: str, name: str) -> None:
        super().__init__(f"http://{server}")
        self.phone = Telephone(PUBLIC_URL, PEERS[name](), self.came_out, at=self.url)
        self.cleared_s: list[float] = []
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
                if event["type"] == "output_audio_buffer.cleared":
                    self.cleared_s.append(self._now())
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

    def clear_to_silence_ms(self) -> list[float]:
        """From each clear to the end of the last loud piece before the next second is over."""
        found = []
        for at in self.cleared_s:
            after = [loud for loud in self.phone.loud_at(at) if loud < at + 1.0]
            run: list[float] = []
            for loud in after:  # of the reply that was cut: what follows it is another
                if loud - (run[-1] if run else at) > 0.1:
                    break
                run.append(loud)
            found.append(1000.0 * (run[-1] + 0.02 - at) if run else 0.0)
        return found


async def play(chosen: argparse.Namespace) -> dict[str, Any]:
    script = load_call()
    utterances = load_utterances(script, chosen.voice, RATE_HZ)
    options = CallOptions(seed=chosen.seed)
    if chosen.line == "websocket":
        socket = await RealtimeConnection.open(f"ws://{chosen.server}", extras={"greeting": "1"})
        call = SimulatedCall(socket, utterances, options=options)
        return {"turns": [turn_of(turn, None) for turn in (await call.run()).turns]}
    cuts = Cuts()
    line = await PhoneConnection.open(chosen.server, chosen.line)
    call = SimulatedCall(line, utterances, options=options, observer=cuts)  # type: ignore[arg-type]
    result = await call.run()
    heard = [
        [told_ms, round(line.heard_ms.get(item_id, 0.0), 1)]
        for item_id, told_ms in cuts.told_ms.items()
    ]
    return {
        "turns": [turn_of(turn, None) for turn in result.turns],
        "clear_ms": [round(one, 1) for one in line.clear_to_silence_ms()],
        "told_and_heard_ms": heard,
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
