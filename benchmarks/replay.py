"""Kept calls played again: how long a hundred take, and how often nothing is taken for something.

``python -m benchmarks.replay --calls 100 --check`` keeps four bundled calls in `voiceloop serve`,
one a voice, and plays them with `voiceloop replay`: so often that there are a hundred, then as many
pairs (`--aa`) of which each is two runs of one build.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.call.script import DEFAULT_CAST, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection
from clients.errors import ConnectionFailed
from clients.server_process import running_server

MINUTES, ALARMS = 10.0, 0.02  # of a hundred calls; share of turns
EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}


async def measure(n_calls: int, n_pairs: int, found: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "calls"
        settings = Path(folder) / "voiceloop.toml"
        settings.write_text(f'[recording]\nfolder = "{kept}"\nconsent = "none"\n')
        await _keep(settings)
        calls = sorted(kept.glob("*.json"))
        found["against the recording"] = await _replay(calls, n_calls)
        if n_pairs:
            found["two runs"] = await _replay(calls, n_pairs, "--aa")


async def _keep(settings: Path) -> None:
    arguments = ("--preset", "embedded", "--config", str(settings))
    async with running_server(arguments, log=RESULTS / "replay-server.log") as server:
        for voice in load_call().casts[DEFAULT_CAST]:
            utterances = load_utterances(load_call(), voice, RATE_HZ)
            connection = await RealtimeConnection.open(server.url, extras=EXTRAS)
            await SimulatedCall(connection, utterances, voice=voice).run()
        await asyncio.sleep(2.0)  # for the last call's file


async def _replay(calls: list[Path], n: int, *flags: str) -> dict[str, Any]:
    chosen = [str(calls[number % len(calls)]) for number in range(n)]
    command = (sys.executable, "-m", "voiceloop", "replay", *chosen, "--json", *flags)
    process = await asyncio.create_subprocess_exec(
        *command, "--preset", "embedded", stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    try:
        told: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise ConnectionFailed(f"expected replays, found exit {process.returncode}") from None
    return told


def main() -> int:
    command = Benchmark("replay", "Kept calls played again: minutes, and false alarms.")
    command.count("--calls", 100, "so many replays in all")
    command.count("--pairs", 25, "so many pairs of two runs")
    chosen = command.parse()
    found: dict[str, Any] = {}
    command.measure(measure(chosen.calls, chosen.pairs, found))
    if len(found) < 2:
        return command.without_results()
    played, pairs = found["against the recording"], found["two runs"]
    minutes = played["took_s"] / 60.0 * 100.0 / chosen.calls
    alarms = pairs["any"]["n_differ"] / max(1, pairs["any"]["n"])
    bars = [
        Bar("100 calls replayed", minutes, MINUTES, "min"),
        Bar("false alarms of two runs, of all turns", alarms, ALARMS, ""),
    ]
    print(json.dumps(found, indent=1))
    return command.finish({"calls": chosen.calls, "pairs": chosen.pairs}, bars, **found)


if __name__ == "__main__":
    sys.exit(run(main))
