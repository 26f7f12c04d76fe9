"""Any model, same manners: ``python -m benchmarks.any_brain [--part NAME] [--quick] [--check]``.

Each part is one row of figures or two, all of served calls; the services are scripted on the
loopback. ``--quick``: a few turns of each, which tells whether a part runs and no figure.

dialects   fourteen services that refuse and think each in its own way: calls that speak
thoughts   2,000 replies that think in every known way, cut anywhere: thoughts that got out
memory     an hour's call on a service that tells its window, and on one that does not: facts that
           its model, which knows only its prompt, says when it is asked
readers    32 calls on each reader of the turn's end; calls on a model without an end-of-turn head
language   forty turns in German
gateway    a gateway, an installation without torch, quick services: gaps and cuts of people's turns

All of it takes half an hour of two idle cores, `gateway` 20 minutes of it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Mapping
from typing import Protocol

from benchmarks.any_brain import dialects, gateway, language, memory, readers, thoughts
from benchmarks.any_brain.served import Found
from benchmarks.harness.command_line import Benchmark, run


class Part(Protocol):
    def __call__(self, found: Found, *, is_quick: bool, seed: int) -> Awaitable[None]: ...


PARTS: Mapping[str, Part] = {
    "dialects": dialects.measure,
    "thoughts": thoughts.measure,
    "memory": memory.measure,
    "readers": readers.measure,
    "language": language.measure,
    "gateway": gateway.measure,
}


async def measure(names: list[str], found: Mapping[str, Found], is_quick: bool, seed: int) -> None:
    for name in names:
        await PARTS[name](found[name], is_quick=is_quick, seed=seed)


def main() -> int:
    command = Benchmark(
        "any_brain",
        "What holds for any model, any topology, any language: calls on scripted services, on "
        "models without an end-of-turn head, and in German.",
        seed="what is said",
    )
    command.several("--part", tuple(PARTS), "(default: all)")
    command.switch("--quick", "a few turns of each part: does it run? No figure of it counts")
    chosen = command.parse()
    logging.getLogger("voiceloop").setLevel(logging.ERROR)  # each of its servers would tell its own
    names = [name for name in PARTS if name in (chosen.part or PARTS)]
    found = {name: Found() for name in names}
    command.measure(measure(names, found, chosen.quick, chosen.seed))
    bars = [bar for each in found.values() for bar in each.bars]
    if not bars:
        return command.without_results()
    figures = {name: each.figures for name, each in found.items()}
    return command.finish({"parts": names, "quick": chosen.quick}, bars, parts=figures)


if __name__ == "__main__":
    sys.exit(run(main))
