"""The process that holds one call: ``python -m clients.console.holding``, options as JSON on stdin.

Says one line on standard output when the call is open, or why there is none, and then answers the
commands of its socket until the call is over.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.call.result import CallResult
from clients.call.script import ScriptedTurn, Utterance, utterance_of
from clients.call.speaking import spoken
from clients.connection import RATE_HZ, RealtimeConnection
from clients.console.held_call import HeldCall, Say
from clients.console.line import Answer, serve
from clients.errors import ClientError
from clients.outputs import writing
from clients.recording import read_recording, write_wav
from clients.report.call_summary import summary_of, turn_json
from clients.served_agent import served_agent

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}


class Holder:
    """Obeys the requests of one call."""

    def __init__(self, call: HeldCall, url: str, key: str | None, options: Mapping[str, Any]):
        self._call = call
        self._url = url
        self._key = key
        self._voice = str(options["voice"])
        self._out = Path(options["out"]) if options["out"] else None
        self._over = asyncio.Event()
        self._summary: dict[str, Any] = {}

    async def obey(self, request: Mapping[str, Any], answer: Answer) -> None:
        try:
            match request:
                case {"verb": "say"}:
                    await answer(await self._call.say(await self._turn_of(request)))
                case {"verb": "events", "since": int(since)}:
                    for event in self._call.events(since):
                        await answer(event)
                case {"verb": "stop"}:
                    self._call.stop()
                    await self._over.wait()
                    await answer(self._summary)
                case _:
                    raise ClientError(f"expected say, events or stop, found {str(request)[:80]}")
        except ClientError as error:
            await answer({"error": str(error)})

    def end(self, result: CallResult | None) -> None:
        """The call is over: write what was asked for. Raises: OutputError."""
        result = result or self._call.call.so_far()
        if result is not None:
            turns = [turn_json(turn) for turn in result.turns]
            figures, typed = summary_of([result]), self._call.typed
            figures["n_turns"] += len(typed)
            figures["unanswered"] += sum(not one["answer"] for one in typed)
            kept = ("n_turns", "unanswered", "hard_cuts", "soft_cuts", "gap_ms", "errors")
            self._summary = {"ended": True} | {name: figures[name] for name in kept}
            if self._out is not None:
                told = {"greeting": result.greeting, **figures, "turns": turns, "typed": typed}
                self._write(self._out, told)
        self._over.set()

    def _write(self, out: Path, results: dict[str, Any]) -> None:
        sound, told = out / "conversation.wav", out / "turns.json"
        call = self._call.call
        write_wav(sound, call.record.channels(call.uplink.recorded()), RATE_HZ)
        with writing(out):
            told.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        self._summary["wrote"] = [str(sound), str(told)]

    async def _turn_of(self, request: Mapping[str, Any]) -> Say:
        text, wav = str(request.get("text", "")), request.get("wav")
        utterance: Utterance | None = None
        if wav is not None:
            recording = await asyncio.to_thread(read_recording, Path(wav))
            turn = ScriptedTurn("wav", f"({Path(wav).name})", "", "agent", 0.0, 0.0, ())
            text, utterance = turn.text, utterance_of(turn, recording.at_rate(RATE_HZ))
        elif not text.strip():
            raise ClientError("expected words or --wav, found neither")
        elif not request.get("typed"):
            [utterance] = await spoken([text], self._url, self._key, self._voice)
        return Say(text, utterance, request.get("after"), waits=not request.get("no_wait"))


async def hold(options: Mapping[str, Any]) -> None:
    """One call from its start to its end. Raises: ClientError, before it is open."""
    path = Path(options["socket"])
    config = Path(options["config"]) if options["config"] else None
    async with served_agent(options["agent"], config, options["preset"], options["key"]) as (
        url,
        key,
    ):
        connection = await RealtimeConnection.open(url, key=key, extras=EXTRAS)
        call = HeldCall(connection, options["results"])
        holder = Holder(call, url, key, options)
        running = asyncio.create_task(call.run())
        greeted = asyncio.create_task(call.greeted.wait())
        await asyncio.wait({running, greeted}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            greeted.cancel()
            running.result()
        server = await serve(path, holder.obey)
        _tell({"call": path.stem, "url": url, "pid": os.getpid(), "greeting": call.greeting})
        result = None
        try:
            result = await running
        finally:
            path.unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the end
            holder.end(result)
            server.close()
            await server.wait_closed()


def _tell(one: Mapping[str, Any]) -> None:
    print(json.dumps(one), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(hold(json.load(sys.stdin)))
    except ClientError as error:
        _tell({"error": str(error)})
