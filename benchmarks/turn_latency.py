"""The gap: ``python -m benchmarks.turn_latency [--turns 60] [--human | --cast NAME] [--check]``.

Plays the bundled call, in each of its voices by turns, into ``voiceloop serve`` on the loopback,
one call at a time, in real time, room noise between utterances. With ``--human`` the callers are
clips of the shared data instead, none that the waits were chosen on; with ``--ablate`` the call is
played into several servers, each with one mechanism of anticipation off, interleaved
(``--ablate ends``: only what ends a turn, with ``--human`` too; ``--ablate smollm2``: with a
trained model of 135M, and a bar on all of them together; ``--ablate service``: with a model behind
a service; ``--ablate brains``: every switch on each of the three, brain after brain). With
``--fakes`` the models are scripted and instant and the endpoint is a plain timer, so that what
remains is the runtime. ``--check`` fails where a bar is missed. A run that is interrupted writes
the calls that had ended.

The gap runs from the caller's last sound sent (of the waveform) to the agent's first sample above
-45 dBFS received; a cut-in, the agent starting before the caller has ended, is no small gap but a
failure.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.calls import remote_brain
from benchmarks.calls.ablation import (
    ABLATIONS,
    AGENT,
    BRAINS,
    EMBEDDED,
    Variant,
    ablation_bars,
    print_ablation,
)
from benchmarks.calls.bars import EMBEDDED as EMBEDDED_BARS
from benchmarks.calls.bars import HUMAN, bars_of
from benchmarks.calls.human_turns import CHOSEN_ON, human_turns, utterance_of
from benchmarks.calls.plot import plot
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar, bar_table, interleaved
from clients.call.open_call import CallOptions
from clients.call.result import CallResult
from clients.call.script import DEFAULT_CAST, Utterance, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.connection import RATE_HZ, RealtimeConnection, own_key
from clients.progress import progress_bar
from clients.report.call_summary import summary_of, turn_json
from clients.report.waterfall_png import check_matplotlib
from clients.server_process import SERVE, ServerProcess, running_server

EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}
FAKE_SERVER = (sys.executable, "-m", "benchmarks.calls.fake_server")
DEFAULT_ENDPOINT_MS = 200
HUMAN_TURNS_OF_A_CALL = 8
ALL_BRAINS = "brains"


@dataclass(frozen=True, slots=True)
class Settings:
    """``variants`` are measured interleaved. human: clips of the shared data are the callers."""

    n_turns: int
    variants: dict[str, Variant]
    seed: int = 0
    endpoint_ms: int | None = None  # None: the real models with the server's own endpointing
    human: bool = False
    cast: str = DEFAULT_CAST
    is_unbarred: bool = False  # the bars are the embedded preset's


@dataclass(slots=True)
class Measured:
    """What one variant showed."""

    calls: list[CallResult] = field(default_factory=list)
    ready_s: float = 0.0
    resident_mb: float = 0.0


async def measure(settings: Settings, measured: Mapping[str, Measured]) -> None:
    """Start every variant's server, play the calls interleaved, stop them.

    ``measured``: of each variant; filled call by call.

    Raises:
        ClientError: a server did not start or a call broke off.
    """
    callers = callers_of(settings)
    n_calls = -(-settings.n_turns // len(callers[0][1]))
    rounds = list(interleaved(list(settings.variants), n_calls))
    async with AsyncExitStack() as running:
        servers = {}
        for name in settings.variants:
            servers[name] = await running.enter_async_context(start(settings, name))
            measured[name].ready_s = servers[name].ready_s
        with progress_bar("calls", len(rounds)) as progress:
            for done, turn in enumerate(rounds):
                voice, utterances = callers[turn.index % len(callers)]
                seed = settings.seed + turn.index
                call = await play(servers[turn.variant], voice, utterances, seed, settings)
                memory_mb = servers[turn.variant].resident_mb()
                progress(done + 1)
                into = measured[turn.variant]
                into.calls.append(call)
                into.resident_mb = max(into.resident_mb, memory_mb)


def callers_of(settings: Settings) -> list[tuple[str, tuple[Utterance, ...]]]:
    """Calls to be played by turns: a name, and what is said."""
    if not settings.human:
        script = load_call()
        voices = script.casts[settings.cast]
        return [(voice, load_utterances(script, voice, RATE_HZ)) for voice in voices]
    said = [utterance_of(turn) for turn in human_turns("plain", settings.n_turns)]
    parts = [
        said[i : i + HUMAN_TURNS_OF_A_CALL] for i in range(0, len(said), HUMAN_TURNS_OF_A_CALL)
    ]
    return [(f"human {i}", tuple(part)) for i, part in enumerate(parts)]


@asynccontextmanager
async def start(settings: Settings, variant: str) -> AsyncIterator[ServerProcess]:
    """The server of one variant, and the service that it asks."""
    command = SERVE if settings.endpoint_ms is None else FAKE_SERVER
    chosen = settings.variants[variant]
    arguments, log = chosen.arguments, RESULTS / f"turn_latency-{variant}.log"
    async with AsyncExitStack() as running:
        if chosen.asks_service:
            service = await running.enter_async_context(
                running_server(command=remote_brain.COMMAND)
            )
            agent = remote_brain.long_agent(AGENT, RESULTS / "turn_latency-agent.toml")
            url = f"http://127.0.0.1:{service.port}/v1"
            arguments += ("--llm-url", url, "--agent", str(agent))
        server = running_server(arguments, command=command, log=log, environment=chosen.environment)
        yield await running.enter_async_context(server)


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
    connection = await RealtimeConnection.open(server.url, key=own_key(server.url), extras=EXTRAS)
    options = CallOptions(seed=seed, turn_detection=detection)
    return await SimulatedCall(connection, utterances, voice=voice, options=options).run()


def print_report(variant: str, measured: Measured, bars: list[Bar]) -> None:
    data = summary_of(measured.calls)
    print(f"\n{variant}: {data['calls']} calls, {data['n_turns']} turns")
    print(f"{'ms':<32}{'n':>5}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}{'most':>9}")
    for label, key in (
        ("of this turn's tokens resident", "turn_tokens_resident"),
        ("turns with a held clause", "clauses_held"),
        ("reply tokens discarded", "reply_tokens_wasted"),
        ("unheard after a barge-in", "reply_tokens_unheard"),
    ):
        if data[key] is not None:
            print(f"{label:<32}{100 * data[key]:>8.1f} %")
    print(
        f"the caller's words that no transcript has: {data['words_lost_around_soft_cuts']} in "
        f"{data['soft_cuts']} turns that were cut softly, {data['words_lost']} in those not cut"
    )
    rows = (
        ("gap", "gap_ms"),
        ("audible (40 ms buffer)", "audible_ms"),
        ("barge-in, ducked, no buffer", "barge_in_ducked_ms"),
        ("barge-in, ducked, 40 ms buffer", "barge_in_ducked_buffered_ms"),
        ("barge-in, on the wire", "barge_in_wire_ms"),
        ("barge-in, audible", "barge_in_audible_ms"),
        ("tokens left to prefill", "left_to_prefill"),
    )
    for label, key in rows:
        row = data[key]
        cells = [row[name] for name in ("p50", "p90", "p95", "p99", "most")]
        print(
            f"{label:<32}{row['n']:>5}"
            + "".join(f"{'-':>9}" if cell is None else f"{cell:>9.1f}" for cell in cells)
        )
    stages = ", ".join(f"{name} {ms:g}" for name, ms in data["stage_p50_ms"].items())
    print(f"median of each stage, ms: {stages}")
    for turn in (turn for call in measured.calls for turn in call.turns):
        missing = () if variant == "fakes" else turn.missing  # a fake says always the same
        if missing or turn.cut_in or not turn.answered:
            why = "cut in" if turn.cut_in else "missing " + ", ".join(missing)
            why = why if turn.answered else "unanswered"
            print(f"  {turn.name}: {why}; heard {turn.heard!r}, answered {turn.answer!r}")
    print(bar_table(bars))


def parsed() -> tuple[Benchmark, argparse.Namespace]:
    """Options that would be ignored beside others are refused."""
    command = Benchmark(
        "turn_latency",
        "The gap between the caller's last sound and the agent's first, in real calls on the "
        "loopback. A run that is interrupted writes the calls that had ended.",
        seed="the room noise",
    )
    command.count("--turns", 60, "at least so many, in whole calls")
    command.switch("--fakes", "scripted, instant models: the runtime alone")
    told = f"with --fakes: ms of silence that end a turn (default: {DEFAULT_ENDPOINT_MS})"
    command.count("--endpoint-ms", None, told)
    command.choice("--cast", load_call().casts, DEFAULT_CAST, "the voices of the bundled call")
    command.switch("--human", "clips of the shared data (VOICELOOP_DATA), not the bundled call")
    command.parser.add_argument(
        "--config", type=Path, metavar="FILE",
        help="serve these settings, without bars (default: the embedded preset)",
    )  # fmt: skip
    command.parser.add_argument(
        "--ablate", nargs="?", const="embedded", choices=(*ABLATIONS, ALL_BRAINS), metavar="SET",
        help=f"each mechanism of anticipation off in turn, of {', '.join(ABLATIONS)} (default: "
        "embedded): the embedded agent, the three that end a turn, SmolLM2-135M's four or all, a "
        f"service. {ALL_BRAINS}: all of three, one after the other. A call of eight turns takes a "
        "minute, and each mechanism one at least",
    )  # fmt: skip
    chosen = command.parse()
    refuse = command.parser.error
    if chosen.endpoint_ms is not None and not chosen.fakes:
        refuse("--endpoint-ms: expected --fakes with it, found none")
    if chosen.fakes and chosen.ablate is not None:
        refuse("expected one of --fakes and --ablate, found both")
    if chosen.config and (chosen.fakes or chosen.ablate or chosen.check):
        refuse("--config: expected it without --fakes, --ablate and --check, found both")
    if chosen.ablate not in (None, "smollm2") and chosen.check:
        refuse(f"--check: expected it without --ablate {chosen.ablate}: its variants are to miss")
    return command, chosen


def settings_of(chosen: argparse.Namespace) -> Settings:
    """Of a run; of `--ablate` with one brain."""
    variants = {"human" if chosen.human else "embedded": Variant(EMBEDDED)}
    if chosen.fakes:
        variants = {"fakes": Variant()}
    if chosen.config:
        variants = {chosen.config.stem: Variant(("--config", str(chosen.config)))}
    if chosen.ablate:
        variants = ABLATIONS[chosen.ablate]
    endpoint_ms = (chosen.endpoint_ms or DEFAULT_ENDPOINT_MS) if chosen.fakes else None
    return Settings(
        chosen.turns, variants, chosen.seed, endpoint_ms, human=chosen.human, cast=chosen.cast,
        is_unbarred=chosen.config is not None,
    )  # fmt: skip


def report(
    command: Benchmark, settings: Settings, variant: str, figures: Measured, ablation: str | None
) -> list[Bar]:
    """Write and print one variant's figures; returns the bars that were asked for."""
    data = summary_of(figures.calls)
    bars = bars_of(data, figures.ready_s, figures.resident_mb, bar_set(settings))
    bars = [] if command.partial or settings.is_unbarred else bars
    print_report(variant, figures, bars)
    path = command.write(
        {
            "turns": settings.n_turns,
            "endpoint_ms": settings.endpoint_ms,
            "human": settings.human,
            "cast": None if settings.human else settings.cast,
            "clips_left_out": CHOSEN_ON if settings.human else 0,
            "ablation": ablation,
        },
        bars,
        name="-".join(["turn_latency", *set_of(ablation), variant]).replace(" ", "-"),
        ready_s=round(figures.ready_s, 2),
        resident_mb=round(figures.resident_mb, 1),
        **data,
        turns=[turn_json(turn) for call in figures.calls for turn in call.turns],
    )
    if command.partial is None:
        plot(json.loads(path.read_text(encoding="utf-8")), path.with_suffix(".png"))
    return bars


def set_of(ablation: str | None) -> tuple[str, ...]:
    """What stands in the name of a result besides its variant: the brain, where it is another."""
    return () if ablation in (None, "embedded", "ends") else (ablation,)


def bar_set(settings: Settings) -> str:
    if settings.endpoint_ms is not None:
        return f"fakes {settings.endpoint_ms}"
    return HUMAN if settings.human else EMBEDDED_BARS


def main() -> int:
    command, chosen = parsed()
    check_matplotlib("the picture of the results")
    if chosen.ablate != ALL_BRAINS:
        return command.exit_code(measured_set(command, chosen))
    for brain, chosen.ablate in BRAINS.items():
        print(f"\n{brain}")
        measured_set(command, chosen)
        if command.partial:
            break
    return command.exit_code(())


def measured_set(command: Benchmark, chosen: argparse.Namespace) -> list[Bar]:
    """Measure and report one set of servers; returns the bars that are judged."""
    settings = settings_of(chosen)
    every = {name: Measured() for name in settings.variants}
    command.measure(measure(settings, every))
    measured = {name: figures for name, figures in every.items() if figures.calls}
    if not measured:
        command.without_results()
        return []
    bars = [
        bar
        for name, figures in measured.items()
        for bar in report(command, settings, name, figures, chosen.ablate)
    ]
    if chosen.ablate and not command.partial:
        summaries = {name: summary_of(figures.calls) for name, figures in measured.items()}
        print_ablation(summaries)
        bars = ablation_bars(chosen.ablate, summaries)
        print(bar_table(bars) if bars else "")
    return bars


if __name__ == "__main__":
    sys.exit(run(main))
