"""``voiceloop replay``: what another build or configuration makes of calls that were kept."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import chain, zip_longest
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from voiceloop.config import Config, load_config
from voiceloop.errors import ConfigError
from voiceloop.models.catalog import EMBEDDED
from voiceloop.models.presets import resolve_agent, with_preset
from voiceloop.replay.clock import SkippingLoop
from voiceloop.replay.compare import ASPECTS, Comparison, Pair, compare
from voiceloop.replay.kept import KeptFiles, read_kept
from voiceloop.replay.player import may_skip, opened_player

EXIT_DIFFERS = 1
AT_ONCE = 2  # players of the embedded models: on two cores they take 8 to 22 % less time than one


def run_replay(chosen: argparse.Namespace) -> int:
    """Returns the exit code: 1 where something differs. Raises: ConfigError, BackendError."""
    flags = {"agent": chosen.agent, "preset": chosen.preset}
    config = load_config(chosen.config, environ=os.environ, flags=flags)
    calls, left_out = read_all(chosen.calls)
    with tempfile.TemporaryDirectory() as folder:
        out = chosen.out if chosen.out is not None else Path(folder)
        comparison, took_s = _compared(config, calls, out, is_aa=chosen.aa)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    told = comparison.told()
    spoken_s = sum(float(call.notes.get("seconds", 0.0)) for call in calls) * (1 + chosen.aa)
    told |= {"calls": len(calls), "spoken_s": round(spoken_s, 1), "took_s": round(took_s, 1)}
    told["left_out"] = len(left_out)
    told["clock"] = "skips" if may_skip(config) else "real: services elsewhere compute"
    print(json.dumps(told, indent=1) if chosen.json else _table(told, is_aa=chosen.aa))
    return EXIT_DIFFERS if told["any"]["n_differ"] else 0


def read_all(given: Sequence[Path]) -> tuple[list[KeptFiles], list[str]]:
    """The calls, and why others of a folder are none: in some nobody spoke, one may be open yet.

    Raises: ConfigError: a call that was named is none, or no folder has one.
    """
    calls: list[KeptFiles] = []
    left_out: list[str] = []
    for path in given:
        if not path.is_dir():
            calls.append(read_kept(path))
            continue
        for one in sorted(path.glob("*.json")):
            try:
                calls.append(read_kept(one))
            except ConfigError as error:
                left_out.append(str(error))
    if not calls:
        raise ConfigError(left_out[0] if left_out else "expected kept calls, found none")
    return calls, left_out


def _compared(
    config: Config, calls: Sequence[KeptFiles], out: Path, *, is_aa: bool
) -> tuple[Comparison, float]:
    """Play the calls; returns the seconds that it took, too, once the models were loaded."""
    n_players = min(AT_ONCE if _fit_beside(config) else 1, len(calls))
    shares = [calls[first::n_players] for first in range(n_players)]
    play = partial(_played, config, out, is_aa)
    if n_players == 1:
        played = [play(calls)]
    else:
        with ProcessPoolExecutor(n_players, get_context("spawn")) as pool:
            played = list(pool.map(play, shares))
    by_turns = chain.from_iterable(zip_longest(*(share for share, _ in played), fillvalue=()))
    pairs = tuple(chain.from_iterable(by_turns))
    return Comparison(pairs), max(took_s for _, took_s in played)


def _fit_beside(config: Config) -> bool:
    """Whether two sets of these models leave each other the processor: one waits for itself."""
    is_small = with_preset(config)[0].preset == EMBEDDED.name and not config.llm_model
    return is_small and (os.cpu_count() or 1) >= AT_ONCE and may_skip(config)


def _played(
    config: Config, out: Path, is_aa: bool, calls: Sequence[KeptFiles]
) -> tuple[list[tuple[Pair, ...]], float]:
    """One player's share, in its process: of each call its turns, and the seconds of all."""
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        return runner.run(_play(config, out, is_aa, calls))


async def _play(
    config: Config, out: Path, is_aa: bool, calls: Sequence[KeptFiles]
) -> tuple[list[tuple[Pair, ...]], float]:
    found: list[tuple[Pair, ...]] = []
    async with opened_player(config, resolve_agent(config), out) as player:
        began_s = time.monotonic()
        for call in calls:
            after = await player.play(call)
            before = call.notes
            if is_aa:
                before, after = after, await player.play(call)
            found.append(compare(call.name, before, after))
            print(f"{call.name}: played", file=sys.stderr)
        took_s = time.monotonic() - began_s
    return found, took_s


def _table(told: dict[str, Any], *, is_aa: bool) -> str:
    speed = told["spoken_s"] / max(told["took_s"], 1e-9)
    whose = "two runs of one configuration" if is_aa else "the recording and this run"
    lines = [
        f"{told['calls']} calls, {told['turns']} turns, {told['spoken_s']:.0f} s in "
        f"{told['took_s']:.0f} s ({speed:.1f} times real time; clock: {told['clock']})",
        f"differs between {whose}, with 95 % bounds:",
    ]
    for name in (*ASPECTS, "any"):
        one = told[name]
        bounds = f"{100 * one['low']:.1f} to {100 * one['high']:.1f} %"
        lines.append(f"  {name:8} {one['n_differ']:4} of {one['n']}  ({bounds})")
    gap = told["gap"]
    if gap["n"]:
        bounds = f"{gap['low_ms']:+.0f} to {gap['high_ms']:+.0f}"
        lines.append(f"  gap      {gap['median_ms']:+.0f} ms, the median of {gap['n']} ({bounds})")
    for turn in told["differing"][:20]:
        where = f"{turn['call']} at {turn['at_ms'] / 1000:.1f} s"
        for name in ASPECTS:
            if name in turn:
                before, after = turn[name]
                lines.append(f"  {where}: {name}: {before!r} -> {after!r}")
    return "\n".join(lines)
