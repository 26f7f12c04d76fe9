"""Calls through a speech-to-speech server without manners, and to it alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from benchmarks.any_brain.served import Found
from benchmarks.calls.cutting_caller import CuttingCaller
from benchmarks.harness.harness import Bar
from benchmarks.two_models.calls import play, play_at, server
from clients.call.script import DEFAULT_CAST, load_call, load_utterances
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.report.percentiles import percentile
from clients.server_process import ServerProcess
from tests.omni_server import OmniServer, heard_words, omni

FIRST_MS = 300.0  # the server's own, from the end of a turn to its first sound
MOST_ADDED_MS, MOST_SILENT_MS, MOST_APART = 50.0, 180.0, 1
REPLIES = (
    "We close at six on Saturday, and the kitchen closes half an hour before that.",
    "A large cappuccino is four dollars and a quarter, with oat milk or without it.",
    "You find us near the library, on the corner across from the old station there.",
)
LONG = " ".join(REPLIES)
CUTS = tuple(700.0 + 230.0 * number for number in range(12))  # ms of the reply, before a cut


async def measure(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    """It sends 20 times faster than real time, and ignores every cancel."""
    n_calls = 1 if is_quick else n_calls
    alone = await _alone(n_calls, seed)
    omni_server = OmniServer(REPLIES, first_ms=FIRST_MS)
    async with omni(omni_server) as url, _through(url) as running:
        gaps, added, silent = await _called(running, omni_server, n_calls, seed)
    leads = [await _cut(leads, 4 if is_quick else len(CUTS)) for leads in (True, False)]
    apart = [one for each in leads for one in each]
    p50 = percentile(gaps, 50) if gaps else None
    own = percentile(alone, 50) if alone else None
    found.figures.update({
        "gap_p50_ms": {"alone": own, "through": p50},
        "n": {"alone": len(alone), "through": len(gaps)},
        "added_ms": added, "silent_ms": silent, "words_apart": apart,
        "errors": omni_server.errors,
    })  # fmt: skip
    found.bars += [
        Bar("upstream: gap p50 over its own",
            p50 - own if p50 is not None and own is not None else None, MOST_ADDED_MS),
        Bar("from the turn's end to sound, over its own p50",
            percentile(added, 50) if added else None, MOST_ADDED_MS, n=len(added)),
        Bar("a stop that it ignores: silent on the wire p95",
            percentile(silent, 95) if silent else None, MOST_SILENT_MS, n=len(silent)),
        Bar("history apart, words, most", max(apart, default=None), MOST_APART, "", n=len(apart)),
    ]  # fmt: skip


def _through(url: str) -> Any:
    return server(keys=f'realtime_url = "{url}"\n')


async def _alone(n_calls: int, seed: int) -> list[float]:
    """Gaps of the same call to the server itself, which ends turns after half a second."""
    omni_server, gaps = OmniServer(REPLIES, first_ms=FIRST_MS, speed=1.0), list[float]()
    async with omni(omni_server) as url:
        for number in range(n_calls):
            with suppress(TimeoutError):
                async with asyncio.timeout(180):
                    result, _ = await play_at(f"{url}/realtime", seed + number)
                    gaps += [turn.gap_ms for turn in result.turns if turn.gap_ms is not None]
    return gaps


async def _called(
    running: ServerProcess, omni_server: OmniServer, n_calls: int, seed: int
) -> tuple[list[float], list[float], list[float]]:
    """Gaps; of each turn what is added to the server's own latency; silence after a barge-in."""
    gaps, added, silent = list[float](), list[float](), list[float]()
    for number in range(n_calls):
        result, replies = await play(running, seed + number)
        gaps += [turn.gap_ms for turn in result.turns if turn.gap_ms is not None]
        silent += [turn.barge_in.wire_ms for turn in result.turns if turn.barge_in is not None]
        for reply in replies:
            marks = (reply.timeline or {}).get("marks", {})
            decided, wire = marks.get("endpoint_decision"), marks.get("first_byte_on_wire")
            own = next(
                (first - asked for asked, first in zip(omni_server.asked_at, omni_server.first_at,
                                                       strict=False)
                 if decided is not None and decided <= asked <= decided + 0.5), None,
            )  # fmt: skip
            if wire is not None and decided is not None and own is not None:
                added.append(1000.0 * (wire - decided - own))
    return gaps, added, silent


async def _cut(leads: bool, n_cuts: int) -> list[float]:
    """Replies cut by a voice: words of the upstream's history beside those that were played."""
    omni_server = OmniServer([LONG], leads=leads)
    script = load_call()
    utterances = load_utterances(script, script.casts[DEFAULT_CAST][0], RATE_HZ)
    apart = list[float]()
    async with omni(omni_server) as url, _through(url) as running:
        connection = await RealtimeConnection.open(running.url, key=own_key(running.url))
        caller = CuttingCaller(connection, "cut", "barge_in", utterances[0].recording.samples)
        try:
            await caller.start()
            for after_ms in CUTS[:n_cuts]:
                n_before = len(omni_server.truncated)
                _, played = await caller.cut(0, after_ms)
                await caller.go_on()
                cuts = omni_server.truncated[n_before:]
                if played is not None and cuts:
                    told = heard_words(LONG, cuts[0]["audio_end_ms"])
                    apart.append(abs(told - heard_words(LONG, played[0])))
        finally:
            await caller.close()
    return apart
