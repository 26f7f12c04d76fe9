"""Two models in one call: ``python -m benchmarks.two_models [--part NAME] [--quick] [--check]``.

The embedded preset is the small model; the large one is a service on the loopback that is as late,
as unsteady and as breakable as each part says. All figures are of served calls.

opener     the bundled call on large models of 400, 800 and 1,500 ms to the first token: the gap,
           the hole behind the opener, and how often there is one; 300 replies behind one
link       typed turns with spoken answers whose large model is cut in the middle of a clause
head       some 270 questions of businesses: whether the route head knows which go wrong
verify     the bundled call at an edge whose drafts a cloud verifies, links of 30, 80 and 150 ms
heard      the bundled call on a service that is sent words, and on the same that hears
quality    100 questions and the scenarios of agents: right answers of the cascade over those of
           its large model, a trained one (`python -m tests.real_weights.fetch`), alone
upstream   the bundled call through a speech-to-speech server that ignores interruptions and sends
           20 times faster than real time, and to it alone; replies cut, and its history of them
switch     the bundled call in which the session takes another model behind each turn
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from benchmarks.any_brain.served import Found
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import Bar
from benchmarks.two_models.calls import longest_hole_ms, play, said_twice, server
from benchmarks.two_models.head import measure as head
from benchmarks.two_models.heard import measure as heard
from benchmarks.two_models.link import measure as link
from benchmarks.two_models.opener import behind_openers
from benchmarks.two_models.quality import measure as quality
from benchmarks.two_models.service import LargeModel, served
from benchmarks.two_models.upstream import measure as upstream
from benchmarks.two_models.verify import measure as verify
from clients.report.percentiles import Distribution, percentile

TTFTS_MS = (400.0, 800.0, 1500.0)
BAR_TTFT_MS = 800.0
MOST_GAP_MS, MOST_HOLE_MS, MOST_SWITCH_MS = 350.0, 150.0, 20.0


class Part(Protocol):
    def __call__(
        self, found: Found, *, is_quick: bool, n_calls: int, seed: int
    ) -> Awaitable[None]: ...


async def opener(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    for ttft_ms in (BAR_TTFT_MS,) if is_quick else TTFTS_MS:
        row = await _opened(LargeModel(ttft_ms, jitter_ms=ttft_ms / 20, seed=seed), n_calls, seed)
        found.figures[f"{ttft_ms:g} ms"] = row
        if ttft_ms == BAR_TTFT_MS:
            found.bars += [
                Bar("large at 800 ms: gap p50", row["gap_ms"]["p50"], MOST_GAP_MS),
                Bar("hole behind the opener p95", row["hole_p95_ms"], MOST_HOLE_MS),
                Bar("repeats of the opener", row["repeats"], 0, ""),
            ]
    found.figures["behind"], bar = behind_openers(is_quick)
    found.bars.append(bar)


async def _opened(large: LargeModel, n_calls: int, seed: int) -> dict[str, Any]:
    gaps, holes, openers, n_turns, n_repeats = list[float](), list[float](), list[str](), 0, 0
    async with served(large) as url, server(url) as running:
        for number in range(n_calls):
            result, replies = await play(running, seed + number)
            gaps += [turn.gap_ms for turn in result.turns if turn.gap_ms is not None]
            n_turns += len(result.turns)
            for reply in replies:
                line = (reply.timeline or {}).get("opener")
                if line is not None:
                    openers.append(line)
                    holes.append(longest_hole_ms(reply))
                    n_repeats += said_twice(reply.text) or reply.text.count("Let me") > 1
    gap = Distribution.of(gaps)
    same = [line in openers[max(0, i - 4) : i] for i, line in enumerate(openers)]
    return {
        "turns": n_turns, "openers": len(openers), "lines": openers,
        "gap_ms": {"n": gap.n, "p50": gap.p50, "p95": gap.p95},
        "hole_p95_ms": percentile(holes, 95) if holes else None,
        "same_within_five": sum(same), "repeats": n_repeats,
        "asked": large.n_asked, "asked_behind_words": large.n_behind,
    }  # fmt: skip


async def switch(found: Found, *, is_quick: bool, n_calls: int, seed: int) -> None:
    """The same call on the same two models, which are as quick as each other."""
    rows: dict[str, list[float]] = {"stays": [], "switches": []}
    async with served(LargeModel(30.0)) as url, server(url, is_cascade=False) as running:
        for number in range(n_calls):
            for name, models in (("stays", ("main",)), ("switches", ("big", "main"))):
                result, _ = await play(running, seed + number, models=models)
                # The first turn is before any switch.
                rows[name] += [t.gap_ms for t in result.turns[1:] if t.gap_ms is not None]
    p50 = {name: percentile(gaps, 50) if gaps else None for name, gaps in rows.items()}
    found.figures.update({"gap_p50_ms": p50, "n": {name: len(gaps) for name, gaps in rows.items()}})
    stays, switches = p50["stays"], p50["switches"]
    added = switches - stays if stays is not None and switches is not None else None
    found.bars.append(Bar("switch in mid-call: gap p50 added", added, MOST_SWITCH_MS))


PARTS: Mapping[str, Part] = {
    "opener": opener, "link": link, "head": head, "verify": verify, "switch": switch,
    "heard": heard, "upstream": upstream, "quality": quality,
}  # fmt: skip


async def measure(
    names: list[str], found: Mapping[str, Found], *, is_quick: bool, n_calls: int, seed: int
) -> None:
    for name in names:
        await PARTS[name](found[name], is_quick=is_quick, n_calls=n_calls, seed=seed)


def main() -> int:
    command = Benchmark(
        "two_models",
        "Two language models in one call: opener, link, head, drafts, switch; models that hear.",
        seed="the calls",
    )
    command.several("--part", tuple(PARTS), "(default: all)")
    command.count("--calls", 3, "bundled calls of each part; cuts: 17 of each")
    command.switch("--quick", "one service of each part: does it run?")
    chosen = command.parse()
    logging.getLogger("voiceloop").setLevel(logging.ERROR)
    names = [name for name in PARTS if name in (chosen.part or PARTS)]
    found = {name: Found() for name in names}
    command.measure(
        measure(names, found, is_quick=chosen.quick, n_calls=chosen.calls, seed=chosen.seed)
    )
    bars = [bar for each in found.values() for bar in each.bars]
    if not bars:
        return command.without_results()
    figures = {name: each.figures for name, each in found.items()}
    settings = {"parts": names, "quick": chosen.quick, "calls": chosen.calls}
    return command.finish(settings, bars, parts=figures)


if __name__ == "__main__":
    sys.exit(run(main))
