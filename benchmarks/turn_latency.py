"""The gap: ``python -m benchmarks.turn_latency [--turns 60] [--check]``.

Plays the bundled call, in each of its voices by turns, into ``voiceloop serve`` on the loopback,
one call at a time, in real time, room noise between utterances. With ``--fakes`` the models are
scripted and instant and the endpoint is a plain timer, so that what remains is the runtime. Prints
every line of the main job's table that concerns a call; ``--check`` fails where one is missed.

Definitions: DESIGN.md section 5 and speech.md section 6 ("Honest latency").
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, Bar, bar_table, interleaved, results, write_results
from clients.call_result import CallResult
from clients.call_script import Utterance, load_call, load_utterances
from clients.call_summary import summary_of, turn_json
from clients.connection import RATE_HZ, RealtimeConnection
from clients.errors import ClientError
from clients.progress import progress_bar
from clients.server_process import SERVE, ServerProcess, running_server
from clients.simulated_call import CallOptions, SimulatedCall

EXTRAS = {"voiceloop.timeline": "1"}
FAKE_SERVER = (sys.executable, "-m", "benchmarks.fake_server")
DEFAULT_ENDPOINT_MS = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """``variants``: name -> arguments of ``voiceloop serve``; several are measured interleaved."""

    n_turns: int
    variants: dict[str, tuple[str, ...]]
    warm_up: int = 0
    seed: int = 0
    endpoint_ms: int | None = None  # None: the real models with the server's own endpointing
    log_folder: Path = RESULTS


@dataclass(slots=True)
class Measured:
    """What one variant showed."""

    calls: list[CallResult] = field(default_factory=list)
    ready_s: float = 0.0
    resident_mb: float = 0.0


async def measure(settings: Settings) -> dict[str, Measured]:
    """Start every variant's server, play the calls interleaved, stop them.

    Raises:
        ClientError: a server did not start or a call broke off.
    """
    script = load_call()
    voices = [(v, load_utterances(script, v, RATE_HZ)) for v in script.voices]
    n_calls = -(-settings.n_turns // len(script.turns))
    measured = {name: Measured() for name in settings.variants}
    rounds = list(interleaved(list(settings.variants), n_calls, settings.warm_up))
    async with AsyncExitStack() as running:
        servers = {}
        for name in settings.variants:
            servers[name] = await running.enter_async_context(start(settings, name))
            measured[name].ready_s = servers[name].ready_s
        with progress_bar("calls", len(rounds)) as progress:
            for done, turn in enumerate(rounds):
                voice, utterances = voices[turn.index % len(voices)]
                seed = settings.seed + turn.index
                call = await play(servers[turn.variant], voice, utterances, seed, settings)
                memory_mb = servers[turn.variant].resident_mb()
                progress(done + 1)
                if not turn.is_warm_up:
                    into = measured[turn.variant]
                    into.calls.append(call)
                    into.resident_mb = max(into.resident_mb, memory_mb)
    return measured


def start(settings: Settings, variant: str) -> Any:
    """The server of one variant as an async context manager."""
    settings.log_folder.mkdir(parents=True, exist_ok=True)
    command = SERVE if settings.endpoint_ms is None else FAKE_SERVER
    log = settings.log_folder / f"turn_latency-{variant}.log"
    return running_server(settings.variants[variant], command=command, log=log)


async def play(
    server: ServerProcess,
    voice: str,
    utterances: tuple[Utterance, ...],
    seed: int,
    settings: Settings,
) -> CallResult:
    detection = None
    if settings.endpoint_ms is not None:
        detection = {"type": "server_vad", "silence_duration_ms": settings.endpoint_ms}
    connection = await RealtimeConnection.open(server.url, extras=EXTRAS)
    options = CallOptions(seed=seed, turn_detection=detection)
    return await SimulatedCall(connection, utterances, voice=voice, options=options).run()


def bars_of(measured: Measured, endpoint_ms: int | None) -> list[Bar]:
    """The table's lines. With the fakes a hesitation is longer than the timer and must be cut:

    cut-ins, words and memory say nothing there and are left out.
    """
    data = summary_of(measured.calls)
    n_turns = max(1, data["n_turns"])
    gap = data["gap_ms"]
    n_gaps = gap["n"]
    bars = [Bar("unanswered turns", data["unanswered"], 0, "")]
    if endpoint_ms is not None:
        bars.append(Bar("gap p50, runtime alone", gap["p50"], endpoint_ms + 60))
    else:
        words = 100.0 * data["turns_with_words_found"] / max(1, data["turns_with_expected_words"])
        bars += [
            Bar("gap p50", gap["p50"], 700),
            Bar("gap p95", gap["p95"], 1200),
            Bar("cut-ins", 100.0 * data["cut_ins"] / n_turns, 3, "%"),
            Bar("hesitations cut", data["hesitations_cut"], 0, ""),
            Bar("answers with the scripted words", words, 90, "%", at_least=True),
            Bar("start to /readyz", measured.ready_s, 6, "s"),
            Bar("resident memory, all processes", measured.resident_mb, 1400, "MB"),
        ]
    bars += [
        Bar("barge-in p95, silent on the wire", data["barge_in_wire_ms"]["p95"], 300),
        Bar("barge-in p95, audible at the client", data["barge_in_audible_ms"]["p95"], 320),
        Bar("turns without a waterfall", n_gaps - data["waterfalls"], 0, ""),
        Bar("waterfall: sum against gap, worst", data["waterfall_worst_error_ms"], 10),
        Bar("waterfall: marks missing", len(data["waterfall_missing_marks"]), 0, ""),
    ]
    return bars


def print_report(variant: str, measured: Measured, bars: list[Bar]) -> None:
    data = summary_of(measured.calls)
    print(f"\n{variant}: {data['calls']} calls, {data['n_turns']} turns")
    print(f"{'ms':<30}{'n':>5}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}{'most':>9}")
    rows = (
        ("gap", "gap_ms"),
        ("audible (40 ms buffer)", "audible_ms"),
        ("barge-in, on the wire", "barge_in_wire_ms"),
        ("barge-in, audible", "barge_in_audible_ms"),
    )
    for label, key in rows:
        row = data[key]
        cells = [row[name] for name in ("p50", "p90", "p95", "p99", "most")]
        print(
            f"{label:<30}{row['n']:>5}"
            + "".join(f"{'-':>9}" if cell is None else f"{cell:>9.1f}" for cell in cells)
        )
    stages = ", ".join(f"{name} {ms:g}" for name, ms in data["stage_p50_ms"].items())
    print(f"median of each stage, ms: {stages}")
    for turn in (turn for call in measured.calls for turn in call.turns):
        if turn.missing or turn.cut_in or not turn.answered:
            why = "cut in" if turn.cut_in else "missing " + ", ".join(turn.missing)
            why = why if turn.answered else "unanswered"
            print(f"  {turn.name}: {why}; heard {turn.heard!r}, answered {turn.answer!r}")
    print(bar_table(bars))


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m benchmarks.turn_latency", description=__doc__.splitlines()[0]
    )
    arguments.add_argument("--turns", type=int, default=60, help="at least so many (default: 60)")
    arguments.add_argument(
        "--fakes", action="store_true", help="scripted, instant models: the runtime alone"
    )
    arguments.add_argument(
        "--endpoint-ms", type=int, help="with --fakes: the timer T (default: 200)"
    )
    arguments.add_argument(
        "--variant",
        action="append",
        metavar="NAME=ARGUMENTS",
        help="compare: arguments of `voiceloop serve`; repeat for each variant",
    )
    arguments.add_argument("--warm-up", type=int, default=0, help="calls not counted, first")
    arguments.add_argument("--seed", type=int, default=0, help="of the room noise")
    arguments.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    arguments.add_argument("--json", action="store_true", help="print the results as JSON")
    return arguments


def settings_of(chosen: argparse.Namespace) -> Settings:
    variants: dict[str, tuple[str, ...]] = {"fakes" if chosen.fakes else "embedded": ()}
    if chosen.variant:
        pairs = (text.partition("=")[::2] for text in chosen.variant)
        variants = {name: tuple(shlex.split(arguments)) for name, arguments in pairs}
    endpoint_ms = (chosen.endpoint_ms or DEFAULT_ENDPOINT_MS) if chosen.fakes else None
    return Settings(chosen.turns, variants, chosen.warm_up, chosen.seed, endpoint_ms)


def main() -> int:
    settings = settings_of(parser_arguments := parser().parse_args())
    try:
        measured = asyncio.run(measure(settings))
    except ClientError as error:
        print(error, file=sys.stderr)
        return 2
    all_hold = True
    for variant, figures in measured.items():
        bars = bars_of(figures, settings.endpoint_ms)
        all_hold &= all(bar.holds for bar in bars)
        data = results(
            f"turn_latency-{variant}",
            settings.seed,
            {"turns": settings.n_turns, "endpoint_ms": settings.endpoint_ms},
            bars,
            ready_s=round(figures.ready_s, 2),
            resident_mb=round(figures.resident_mb, 1),
            **summary_of(figures.calls),
            turns=[turn_json(turn) for call in figures.calls for turn in call.turns],
        )
        path = write_results(data)
        if parser_arguments.json:
            json.dump(data, sys.stdout, indent=1)
            print()
        else:
            print_report(variant, figures, bars)
            print(f"results: {path}")
    return 0 if all_hold or not parser_arguments.check else 1


if __name__ == "__main__":
    sys.exit(main())
