"""VoiceLoop beside Pipecat and LiveKit Agents: ``python -m benchmarks.peers [--check]``.

Every runtime is given the same stub services (`benchmarks.peers.stub_services`, instant by
default), the same human clips (none that VoiceLoop's waits were chosen on) in real time over the
loopback, plain and with hesitations of 300-1200 ms spliced in, and is measured by the same caller
from the audio alone (`benchmarks.peers.call`). Blocks of turns are interleaved. The peers run
locally and without an account, each in its own environment (`benchmarks.peers.envs` makes it on
first use). What each was given stands in the table. Each variant of VoiceLoop is held against the
same bars, all of them by its own figures, the defaults first. A variant takes 13 s for a plain and
a hesitating turn and 10 s for a barge-in: the default command, six variants, lasts 37 minutes after
the peers' environments are made. A run that is interrupted writes the calls that had ended.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calls.ablation import EMBEDDED, OFF, PLAIN
from benchmarks.calls.human_turns import CHOSEN_ON, HumanTurn, human_turns
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar, cell, interleaved, percent
from benchmarks.peers.call import BareLine, Line, MeasuredTurn, PeerCall, RealtimeLine
from benchmarks.peers.envs import PINS, python_of
from benchmarks.peers.stub_services import KnownTurn, read_delays
from clients.call.result import SOFT_CUT_MS
from clients.progress import progress_bar
from clients.recording import Samples
from clients.report.call_summary import stage_medians
from clients.report.percentiles import Distribution
from clients.server_process import SERVE, ServerProcess, running_server

HERE = Path(__file__).resolve().parent
LISTENS_AT_HZ = {"pipecat": 16_000, "livekit": 24_000}  # each one's own default
GIVEN = {
    "voiceloop": "defaults (semantic_vad, auto); P(end of turn) from its embedded engine, that of "
    "the voice from its embedded recognizer, the models being remote",
    "voiceloop-eager": "the same, but semantic_vad of high eagerness",
    "voiceloop-gateway": "the defaults of `voiceloop gateway` beside the same services",
    "voiceloop-bare": "the defaults in an environment of its own, `pip install voiceloop`",
    "voiceloop-local": "the defaults beside a language model here that has no end-of-turn head, "
    "SmolLM2-135M as published",
    "voiceloop-local-blind": "the same without what the model itself makes of the words",
    "voiceloop-no-reader": "the defaults without either P(end of turn): prosody and words alone",
    "pipecat": f"{PINS['pipecat'][0]}, defaults: Silero VAD, Smart Turn v3.2",
    "pipecat-tuned": "the same; a turn that Smart Turn holds to be unfinished waits 1 s, not 3",
    "livekit": f"{PINS['livekit'][0]}, defaults: Silero VAD, turn detector v1-mini",
    "livekit-tuned": "the same; min_delay 0.1 s (0.3), max_delay 1 s (2.5), preemptive TTS, "
    "interruption after 0.25 s (0.5)",
}
WITHOUT = {"no-reader": "p_end,p_voice", "local-blind": "p_end"}  # of what is done ahead
ASKED_FOR = (
    "voiceloop-gateway", "voiceloop-bare", "voiceloop-no-reader", "voiceloop-local",
    "voiceloop-local-blind",
)  # fmt: skip
VARIANTS = tuple(name for name in GIVEN if name not in ASKED_FOR)
DETECTION = {"voiceloop-eager": {"type": "semantic_vad", "eagerness": "high"}}
# Threads of a dot product that spin for one another cost the stub 100 ms of the runtimes' cores.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
BLOCK = 4  # plain turns of a call, and as many hesitating ones
N_BARGE_INS = 6
SLOW_MS = 1000.0
INSTANT = "0,0,0,0"
# Bars of the gap's p50 and p95 by the stubs' delays: instant, and as quick services are.
GAP_BARS_MS: dict[str, dict[str, float]] = {
    INSTANT: {"p50": 250.0},
    "60,100,10,100": {"p50": 330.0, "p95": 600.0},
}
MOST_OVER_1_S = 2.0  # % of plain turns
MOST_HESITATIONS_CUT = 18.0  # %


@dataclass(frozen=True, slots=True)
class Settings:
    n_turns: int
    n_barge_ins: int
    variants: tuple[str, ...]
    delays_ms: str
    seed: int
    environment: Mapping[str, str] = field(default_factory=dict)  # of VoiceLoop's servers


@dataclass(frozen=True, slots=True)
class Block:
    """The turns of one call: (number at the stubs, turn, whether it interrupts)."""

    turns: tuple[tuple[int, HumanTurn, bool], ...]


def blocks_of(
    plain: Sequence[HumanTurn], hesitating: Sequence[HumanTurn], n_barge_ins: int
) -> list[Block]:
    """Calls of a few turns of each kind, by turns; the barge-ins are shared out among them."""
    found = []
    n_blocks = -(-len(plain) // BLOCK)
    for index in range(n_blocks):
        places = range(index * BLOCK, min(len(plain), (index + 1) * BLOCK))
        turns: list[tuple[int, HumanTurn, bool]] = []
        for place in places:
            turns.append((place, plain[place], False))
            if place < len(hesitating):
                turns.append((len(plain) + place, hesitating[place], False))
        n_here = n_barge_ins // n_blocks + (index < n_barge_ins % n_blocks)
        turns += [(place, plain[place], True) for place in list(places)[:n_here]]
        found.append(Block(tuple(turns)))
    return found


async def start(
    running: AsyncExitStack, variant: str, services: str, settings: Settings, log_folder: Path
) -> ServerProcess:
    """The server of one variant."""
    peer, _, flavour = variant.partition("-")
    log = log_folder / f"peers-{variant}.log"
    if peer == "voiceloop":
        named = {f"VOICELOOP_{part}_URL": services for part in ("STT", "LLM", "TTS")}
        off = {OFF: WITHOUT[flavour]} if flavour in WITHOUT else {}
        command, options = SERVE, ("--preset", "remote")
        if flavour == "gateway":
            command, options = (*SERVE[:-1], "gateway"), ()
        if flavour.startswith("local"):
            del named["VOICELOOP_LLM_URL"]
            options = (*EMBEDDED, *PLAIN)
        given = {**named, **off, **settings.environment}
        if flavour == "bare":
            command = (str(python_of("voiceloop")), *SERVE[1:])
        server = running_server(options, command=command, log=log, environment=given)
        return await running.enter_async_context(server)
    command = (str(python_of(peer)), str(HERE / f"{peer}_agent.py"))
    asked = ("--services", services, "--settings", flavour or "default")
    return await running.enter_async_context(running_server(asked, command=command, log=log))


async def start_stubs(
    running: AsyncExitStack,
    known: Sequence[KnownTurn],
    delays_ms: str,
    log_folder: Path,
    voice: Samples | None = None,
) -> int:
    """The services, which know these turns; returns their port. voice: as of `spoken`."""
    folder = running.enter_context(tempfile.TemporaryDirectory())
    path = Path(folder) / "turns.pickle"
    path.write_bytes(pickle.dumps(list(known)))
    command = (sys.executable, "-m", "benchmarks.peers.stub_services")
    options = ["--turns", str(path), "--delays-ms", delays_ms]
    if voice is not None:
        np.save(Path(folder) / "voice.npy", voice)
        options += ["--voice", str(Path(folder) / "voice.npy")]
    log = log_folder / "peers-stubs.log"
    stubs = running_server(options, command=command, log=log, environment=ONE_THREAD)
    return (await running.enter_async_context(stubs)).port


async def open_line(variant: str, server: ServerProcess) -> Line:
    peer = variant.partition("-")[0]
    if peer == "voiceloop":
        return await RealtimeLine.open(server.port, DETECTION.get(variant))
    return await BareLine.open(server.port, LISTENS_AT_HZ[peer])


async def measure(
    settings: Settings,
    measured: Mapping[str, list[MeasuredTurn]],
    turns: tuple[Sequence[HumanTurn], Sequence[HumanTurn]] | None = None,
) -> None:
    """Play every block into every variant.

    ``measured``: of each variant; filled call by call. turns: plain and hesitating ones; None:
    those of people.

    Raises:
        ClientError: the data is not here, a peer cannot be installed, a server did not start or a
            call broke off.
    """
    if turns is None:
        turns = human_turns("plain", settings.n_turns), human_turns("hesitation", settings.n_turns)
    plain, hesitating = turns
    blocks = blocks_of(plain, hesitating, settings.n_barge_ins)
    async with AsyncExitStack() as running:
        known = [KnownTurn(turn.samples, turn.words) for turn in (*plain, *hesitating)]
        port = await start_stubs(running, known, settings.delays_ms, RESULTS)

        tell = post_now(port)
        services = f"http://127.0.0.1:{port}/v1"
        servers = {
            name: await start(running, name, services, settings, RESULTS) for name in measured
        }
        rounds = list(interleaved(tuple(measured), len(blocks)))
        with progress_bar("calls", len(rounds)) as progress:
            for done, one in enumerate(rounds):
                line = await open_line(one.variant, servers[one.variant])
                call = PeerCall(line, tell, seed=settings.seed + one.index)
                measured[one.variant].extend(await call.run(blocks[one.index].turns))
                progress(done + 1)


def post_now(port: int) -> Callable[[int, str], Awaitable[None]]:
    """Tells the stubs which turn is played, and how long the reply to it is."""

    async def tell(number: int, reply: str) -> None:
        body = json.dumps({"turn": number, "reply": reply}).encode()
        await asyncio.to_thread(_post, f"http://127.0.0.1:{port}/now", body)

    return tell


def _post(url: str, body: bytes) -> None:
    urllib.request.urlopen(url, data=body, timeout=5.0).close()


def figures_of(turns: Sequence[MeasuredTurn]) -> dict[str, Any]:
    """One variant's figures, by kind of turn; shares in percent."""
    found: dict[str, Any] = {}
    for kind in ("plain", "hesitation"):
        of_it = [turn for turn in turns if turn.kind == kind]
        gaps = [turn.gap_ms for turn in of_it if turn.gap_ms is not None]
        found[kind] = {
            "n_turns": len(of_it),
            "gap_ms": asdict(Distribution.of(gaps)),
            "over_1_s": percent(sum(gap > SLOW_MS for gap in gaps), len(gaps)),
            "cut": percent(sum(turn.cut for turn in of_it), len(of_it)),
            "cut_hard": percent(sum(turn.is_cut_hard for turn in of_it), len(of_it)),
            "cut_over_ms": asdict(
                Distribution.of([turn.over_ms for turn in of_it if turn.over_ms is not None])
            ),
            "unanswered": sum(not turn.answered for turn in of_it),
        }
    for key in ("wire_ms", "audible_ms"):
        values = [value for turn in turns if (value := getattr(turn, key)) is not None]
        found[f"barge_in_{key}"] = asdict(Distribution.of(values))
    return found


def bars_of(figures: dict[str, dict[str, Any]], judged: str, delays_ms: str = INSTANT) -> list[Bar]:
    """One variant of VoiceLoop against the better peer of the same run, whatever its settings.

    The better peer: of the fastest on plain turns; of those that cut the fewest. All bars read one
    variant, whose name they begin with: no gap of one with the cut turns of another.
    """
    own = figures[judged]
    peers = [row for name, row in figures.items() if not name.startswith("voiceloop")]
    plain = own["plain"]
    wire, audible = own["barge_in_wire_ms"], own["barge_in_audible_ms"]
    bars = [
        Bar(f"gap {name}", plain["gap_ms"][name], limit, n=plain["gap_ms"]["n"])
        for name, limit in GAP_BARS_MS.get(delays_ms, {}).items()
    ]
    bars += [
        Bar("turns over 1 s", plain["over_1_s"], MOST_OVER_1_S, "%"),
        Bar("unanswered turns", plain["unanswered"] + own["hesitation"]["unanswered"], 0, ""),
        Bar("turns cut, hesitation", own["hesitation"]["cut"], MOST_HESITATIONS_CUT, "%"),
    ]
    if wire["n"]:
        bars.append(Bar("barge-in p95, silent on the wire", wire["p95"], 250, n=wire["n"]))
        bars.append(Bar("barge-in p95, audible", audible["p95"], 280, n=audible["n"]))
    medians = [m for row in peers if (m := row["plain"]["gap_ms"]["p50"]) is not None]
    if medians:
        limit = round(0.7 * min(medians), 1)
        bars.append(Bar("gap p50, 0.7 of the better peer", plain["gap_ms"]["p50"], limit))
    for kind in ("plain", "hesitation"):
        cuts = [c for row in peers if (c := row[kind]["cut"]) is not None]
        if cuts:
            name = f"turns cut, {kind}: the better peer"
            bars.append(Bar(name, own[kind]["cut"], min(cuts), "%"))
    return [replace(bar, name=f"{judged}: {bar.name}") for bar in bars]


def judged_of(variants: Sequence[str]) -> list[str]:
    """Whose figures are held against the bars: each variant of VoiceLoop's, the defaults first."""
    return sorted(name for name in variants if name.startswith("voiceloop"))


def print_table(figures: dict[str, dict[str, Any]]) -> None:
    heads = ("n", "p50", "p90", "p95", "most", ">1 s", "cut", "hard", "over", "silent")
    for kind in ("plain", "hesitation"):
        print(f"\n{kind + ', ms':<22}" + "".join(f"{head:>8}" for head in heads))
        for name, row in figures.items():
            part, gap = row[kind], row[kind]["gap_ms"]
            text = [f"{part['n_turns']}", *(cell(gap[key]) for key in heads[1:5])]
            text += [cell(part[key], "%") for key in ("over_1_s", "cut", "cut_hard")]
            text.append(cell(part["cut_over_ms"]["p95"]))
            text.append(str(part["unanswered"]))
            print(f"{name:<22}" + "".join(f"{cell:>8}" for cell in text))
    print(f"\n{'barge-in, ms':<22}{'n':>8}{'wire p50':>10}{'p95':>8}{'audible':>10}{'p95':>8}")
    for name, row in figures.items():
        wire, audible = row["barge_in_wire_ms"], row["barge_in_audible_ms"]
        print(
            f"{name:<22}{wire['n']:>8}{cell(wire['p50']):>10}{cell(wire['p95']):>8}"
            f"{cell(audible['p50']):>10}{cell(audible['p95']):>8}"
        )
    print(f"\nhard: of the cut, heard for over {SOFT_CUT_MS:g} ms once the caller went on")
    print("over: of those cut, for how long the agent was heard over the caller (p95)")
    print("silent: turns without an answer within 6 s. What each was given:")
    for name in figures:
        print(f"  {name}: {GIVEN[name]}")


def print_account(turns: dict[str, list[MeasuredTurn]]) -> None:
    """Where VoiceLoop's time went, by its own account."""
    for name, measured in turns.items():
        waterfalls = [turn.waterfall for turn in measured if turn.waterfall is not None]
        if waterfalls:
            stages = stage_medians(waterfalls).items()
            told = ", ".join(f"{stage} {ms:g}" for stage, ms in stages)
            of_answers = [turn.facts for turn in measured if turn.facts and turn.waterfall]
            drafts = Counter(facts["anticipation"]["draft"] for facts in of_answers)
            counts = ", ".join(f"{n} {draft}" for draft, n in drafts.most_common())
            print(f"{name}, median of each stage, ms: {told}; drafts: {counts}")


def _delays_ms(text: str) -> str:
    read_delays(text)  # here, not when the stubs start
    return text


def main() -> int:
    command = Benchmark(
        "peers",
        "VoiceLoop beside Pipecat and LiveKit Agents on the same stub services and human callers. "
        "It needs the shared data (VOICELOOP_DATA) and installs the peers on first use. A run that "
        "is interrupted writes the calls that had ended.",
        seed="the room noise",
    )
    command.count("--turns", 24, "turns of each kind, plain and hesitating")
    told = f"turns that interrupt the agent (default: {N_BARGE_INS}, or --turns if fewer)"
    command.count("--barge-ins", None, told, at_least=0)
    command.several("--variant", tuple(GIVEN), f"(default: all but {', '.join(ASKED_FOR)})")
    command.parser.add_argument(
        "--delays-ms", type=_delays_ms, default=INSTANT, metavar="MS,MS,MS,MS",
        help="delays of the stubs in ms: STT, first token, token, TTS (default: %(default)s)",
    )  # fmt: skip
    chosen = command.parse()
    n_turns, n_barge_ins = chosen.turns, chosen.barge_ins
    if n_barge_ins is None:
        n_barge_ins = min(N_BARGE_INS, n_turns)
    if n_barge_ins > n_turns:
        found = f"expected at most --turns ({n_turns}), found {n_barge_ins}"
        command.parser.error(f"--barge-ins: {found}")
    variants = tuple(dict.fromkeys(chosen.variant or VARIANTS))
    settings = Settings(n_turns, n_barge_ins, variants, chosen.delays_ms, chosen.seed)
    measured: dict[str, list[MeasuredTurn]] = {variant: [] for variant in variants}
    command.measure(measure(settings, measured))
    if not any(measured.values()):
        return command.without_results()
    figures = {name: figures_of(turns) for name, turns in measured.items()}
    bars = [
        bar
        for judged in judged_of(variants)
        for bar in bars_of(figures, judged, settings.delays_ms)
    ]
    print_table(figures)
    print_account(measured)
    return command.finish(
        {
            "turns": n_turns, "barge_ins": n_barge_ins, "delays_ms": chosen.delays_ms,
            "clips_left_out": CHOSEN_ON,
        },
        bars,
        given={name: GIVEN[name] for name in variants},
        figures=figures,
        turns={name: [asdict(turn) for turn in turns] for name, turns in measured.items()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main))
