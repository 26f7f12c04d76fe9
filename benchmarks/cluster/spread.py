"""Many calls at once: how evenly they lie, and how much of what engines read they had read."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

from benchmarks.cluster.load import call
from benchmarks.cluster.scripted import SLOWLY
from benchmarks.cluster.text_call import TypedCall
from voiceloop.cluster.control.status import Status
from voiceloop.workers.waits import call_of

RAMP_S = 15.0  # of the calls that are placed at once
N_LOOKS = 8  # at the loads, a second apart


async def spread(control: Any, url: str, folder: Path, n_calls: int) -> dict[str, Any]:
    """How evenly calls lie, and what engines had read before."""
    draw = random.Random(0)
    calls = [call(url, draw, 10, 1.0, SLOWLY) for _ in range(n_calls)]

    async def later(index: int) -> TypedCall:
        await asyncio.sleep(index * RAMP_S / n_calls)
        return await calls[index].run()

    placed = [asyncio.create_task(later(index)) for index in range(n_calls)]
    await asyncio.sleep(RAMP_S + 2.0)
    since_s = time.time()
    loads = [await loads_of(control) for _ in range(N_LOOKS)]
    of_calls = calls_of_engines(folder, since_s, time.time())
    ended = await asyncio.gather(*placed)
    of_gateways, of_engines = (
        [sum(of_one) for of_one in zip(*(load[group] for load in loads), strict=True)]
        for group in ("gateways", "engine")
    )
    of_calls += [0] * (len(of_engines) - len(of_calls))  # who was asked by nobody wrote nothing
    hits, hits_of_one = prefix_hits(folder)
    return {
        "calls": n_calls,
        "lost": sum(bool(one.lost) for one in ended),
        "why": sorted({one.lost for one in ended if one.lost})[:3],
        "calls_of_gateways": of_gateways,
        "imbalance_gateways": imbalance(of_gateways),
        "calls_of_engines": of_calls,
        "imbalance_engines": imbalance(of_calls),
        "streams_of_engines": of_engines,
        "prefix_hits": round(hits, 4),
        "prefix_hits_of_one_engine": round(hits_of_one, 4),
        "share_of_one_engines": round(hits / hits_of_one, 4) if hits_of_one else None,
    }


async def loads_of(control: Any) -> dict[str, list[int]]:
    """Calls of each gateway and streams of each engine, now."""
    await asyncio.sleep(1.0)
    status: Status = await asyncio.to_thread(control.status)
    found: dict[str, list[int]] = {"gateways": [], "engine": []}
    for one in status.processes:
        if one.group in found:
            found[one.group].append(one.streams)
    return found


def calls_of_engines(folder: Path, since_s: float, until_s: float) -> list[int]:
    """How many calls each engine was asked by meanwhile."""
    found = []
    for path in sorted(folder.glob("engine-*.jsonl")):
        opened = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        calls = {call_of(stream) for at_s, stream, _ in opened if since_s <= at_s <= until_s}
        found.append(len(calls))
    return found


def imbalance(loads: list[int]) -> float:
    """The most loaded one's share beside the mean."""
    return round(max(loads) / (sum(loads) / len(loads)), 3) if sum(loads) else 0.0


def prefix_hits(folder: Path) -> tuple[float, float]:
    """Share of messages that were read before: by each engine for itself, by one for all."""
    opened: list[tuple[float, str, list[str]]] = []
    for path in folder.glob("engine-*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            at_s, _, chain = json.loads(line)
            opened.append((at_s, path.name, chain))
    opened.sort(key=lambda one: one[0])
    own: dict[str, set[str]] = {}
    everybody = set[str]()
    n_own = n_one = n_all = 0
    for _, engine, chain in opened:
        known = own.setdefault(engine, set())
        n_own += sum(digest in known for digest in chain)
        n_one += sum(digest in everybody for digest in chain)
        n_all += len(chain)
        known.update(chain)
        everybody.update(chain)
    return n_own / max(1, n_all), n_one / max(1, n_all)
