"""One bundled call over WebRTC or a WebSocket: ``python -m benchmarks.webrtc.call URL ...``.

Prints what was measured as one line of JSON. A process of its own, ended by `os._exit`: the threads
of libwebrtc do not end by themselves. Both lines are played so, that nothing else differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from benchmarks.webrtc.ear import EarConnection
from benchmarks.webrtc.relay import Impairment
from clients.call.open_call import CallOptions, Observer
from clients.call.script import load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, Received
from clients.report.call_summary import turn_json

QUERY = {"greeting": "1", "voiceloop.timeline": "1"}


class Cuts:
    """What the server says was heard of the items that were cut."""

    def __init__(self) -> None:
        self.told_ms: dict[str, float] = {}

    def received(self, received: Received) -> None:
        if received.type == "conversation.item.truncated":
            self.told_ms[received.event["item_id"]] = received.event["audio_end_ms"]

    def speaks(self, utterance: Any) -> None: ...

    def finished(self, turn: Any) -> None: ...


async def play(chosen: argparse.Namespace) -> dict[str, Any]:
    script = load_call()
    utterances = load_utterances(script, chosen.voice, RATE_HZ)
    cuts: Observer = Cuts()
    options = CallOptions(seed=chosen.seed)
    if chosen.websocket:
        socket = await RealtimeConnection.open(f"ws://{chosen.server}", extras=QUERY)
        call = SimulatedCall(socket, utterances, options=options)
        return {"turns": [turn_of(turn, None) for turn in (await call.run()).turns]}
    query = "&".join(f"{name}={value}" for name, value in QUERY.items())
    url = f"http://{chosen.server}/v1/realtime/calls?{query}"
    impairment = Impairment(chosen.loss, chosen.delay_ms, chosen.jitter_ms)
    ear = await EarConnection.open(url, impairment, chosen.seed)
    call = SimulatedCall(ear, utterances, options=options, observer=cuts)  # type: ignore[arg-type]
    result = await call.run()
    starts_at = call.record.starts_at
    assert isinstance(cuts, Cuts)
    heard = [
        [told_ms, round(ear.heard_ms.get(item_id, 0.0), 1)]
        for item_id, told_ms in cuts.told_ms.items()
    ]
    return {
        "turns": [turn_of(turn, [at - starts_at for at in ear.sound_at]) for turn in result.turns],
        "dial_ms": round(ear.dial_ms, 1),
        "created_ms": round(ear.created_ms, 1),
        "told_and_heard_ms": heard,
        "errors": list(result.errors),
    }


def turn_of(turn: Any, sound_s: list[float] | None) -> dict[str, Any]:
    """The turn, with when the first packet of the answer came (WebRTC alone)."""
    told = turn_json(turn)
    named = ("name", "said", "heard", "gap_ms", "audible_ms", "cut_in", "answered", "barge_in")
    kept = {name: told[name] for name in (*named, "cut_is_soft")}
    if turn.waterfall is not None:
        kept["stages"] = {stage.name: round(stage.ms, 2) for stage in turn.waterfall.stages}
    if sound_s is not None and turn.gap_ms is not None:
        after = [at for at in sound_s if at >= turn.end_at]
        kept["wire_ms"] = round(1000.0 * (after[0] - turn.end_at), 2) if after else None
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webrtc.call", description=__doc__)
    parser.add_argument("server", help="host:port")
    parser.add_argument("--voice", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--websocket", action="store_true")
    for name in ("loss", "delay-ms", "jitter-ms"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    print(json.dumps(asyncio.run(play(parser.parse_args()))), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
