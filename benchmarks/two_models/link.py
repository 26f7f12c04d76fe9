"""A link that is cut in the middle of a reply: what a caller hears of it."""

from __future__ import annotations

import asyncio
import base64
import time
from contextlib import aclosing
from typing import Any

from benchmarks.any_brain.served import Found
from benchmarks.harness.harness import Bar
from benchmarks.two_models.calls import server
from benchmarks.two_models.service import LargeModel, served
from clients.connection import RATE_HZ, RealtimeConnection, own_key, typed
from clients.errors import ConnectionFailed
from clients.report.percentiles import percentile

CUTS_A_CALL = 17  # three calls are 50
MOST_HOLE_MS = 400.0
ANSWER_S = 20.0
REPLIES = (
    "We close at six on Saturday, and the kitchen is open until half past five that day.",
    "A large cappuccino is four dollars, and you may have it with oat milk as well.",
    "You find us near the library, on the corner that is across from the old station.",
)
QUESTIONS = ("When do you close?", "How much is a cappuccino?", "Where are you?")


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    """The large model is cut six words before the end of its second clause; later it is whole."""
    large = LargeModel(60.0, token_ms=40.0, replies=REPLIES, cut_after=10)
    turns = list[dict[str, Any]]()
    async with served(large) as url, server(url, more="openers = ['-']") as running:
        for _ in range(1 if is_quick else n_calls):
            turns += await _call(running.url)
    lost = [turn for turn in turns if turn["status"] not in ("completed", "incomplete")]
    holes = [turn["hole_ms"] for turn in turns if turn["hole_ms"] is not None]
    found.figures.update({"turns": turns, "cuts": len(large.cut_at)})
    found.bars += [
        Bar(
            "link cut: silence before the next clause p95",
            percentile(holes, 95) if holes else None,
            MOST_HOLE_MS,
            n=len(holes),
        ),
        Bar("turns lost", len(lost), 0, ""),
        Bar("words said twice", sum(repeats(turn["text"]) for turn in turns), 0, ""),
        Bar("the turn behind a cut asks the large model", float(large.n_asked >= len(turns)), 1,
            "", at_least=True),
    ]  # fmt: skip


def repeats(text: str) -> bool:
    """Whether the large model's clause comes again; what the small one says twice is its own."""
    return any(text.count(reply.partition(",")[0]) > 1 for reply in REPLIES)


async def _call(url: str) -> list[dict[str, Any]]:
    connection = await RealtimeConnection.open(
        url, key=own_key(url), extras={"voiceloop.timeline": "1"}
    )
    try:
        turns = []
        for number in range(CUTS_A_CALL):
            text = QUESTIONS[number % len(QUESTIONS)]
            await connection.send({"type": "conversation.item.create", "item": typed(text)})
            await connection.send({"type": "response.create"})
            try:
                async with asyncio.timeout(ANSWER_S):
                    turn = await _read(connection)
            except (TimeoutError, ConnectionFailed) as error:
                turns.append({"status": f"lost: {error}", "text": "", "hole_ms": None})
                break
            turns.append(turn)
        return turns
    finally:
        await connection.close()


async def _read(connection: RealtimeConnection) -> dict[str, Any]:
    """A reply: its text, the longest silence in its sound, and when each word of it came."""
    play_end, hole, text = 0.0, 0.0, ""
    async with aclosing(connection.events()) as events:
        async for received in events:
            event, now = received.event, time.monotonic()
            match event["type"]:
                case "response.output_audio.delta":
                    n_samples = len(base64.b64decode(event["delta"])) / 2
                    if play_end:
                        hole = max(hole, now - play_end)
                    play_end = max(play_end, now) + n_samples / RATE_HZ
                case "response.output_audio_transcript.delta":
                    text += event["delta"]
                case "response.done":
                    status = event["response"]["status"]
                    left_s = play_end - time.monotonic()
                    await asyncio.sleep(max(0.0, left_s))
                    return {"status": status, "text": text, "hole_ms": 1000.0 * hole}
    raise ConnectionFailed(f"the server ended the call: {connection.ended_by}")
