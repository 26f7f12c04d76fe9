"""The panel of manners: ``python -m benchmarks.manners [--part NAME] [--variant NAME] [--each N]``.

Every runtime answers recorded people over a real socket, in real time, on the same stub services as
in `benchmarks.peers`; 1.2 s into each long answer another sound begins. The figures: responds
(share, gap), yields to an interruption (share, time), interrupts the caller, ignores backchannels,
noises, asides, bystanders, a television, its own echo, in its silence who speaks across the room,
and waits for what is dictated. VoiceLoop has its own recognizer, as its users do; the peers are
told the true words where somebody wrote them down. One trial takes some 13 s of each runtime;
`--part` plays one kind.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.calls.human_turns import HumanTurn, dictated_turns, human_turns
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.data_folder import OF_PAUSED_TURNS, OF_TURNS, data_with
from benchmarks.harness.harness import RESULTS, Bar, interleaved, percent
from benchmarks.manners.call import MannersCall, Outcome
from benchmarks.manners.sounds import PARTS, SOURCES, Part, Trial, trials
from benchmarks.peers.__main__ import (
    GIVEN,
    INSTANT,
    Settings,
    open_line,
    post_now,
    start,
    start_stubs,
)
from benchmarks.peers.call import MeasuredTurn
from benchmarks.peers.stub_services import REPLIES, VOICE_HZ, KnownTurn, spoken
from clients.progress import progress_bar
from clients.recording import Recording, Samples, read_flac
from clients.report.percentiles import Distribution
from clients.report.waveform import audible_amplitude
from clients.server_process import SERVE, ServerProcess, running_server

VARIANTS = ("voiceloop", "pipecat", "livekit")
ASKED_FOR = ("voiceloop-stubs",)
PER_CALL = 4  # trials
HEARD_OVER_MS = 100.0  # an agent that sounds over the caller for longer has interrupted
# Percent; the least share that yields, the most time to it, and the least that ignore.
LEAST_YIELDS, SILENT_MS, MOST_INTERRUPTED, LEAST_RESPONDS = 97.0, 300.0, 5.0, 99.0
LEAST_IGNORED: dict[Part, float] = {
    "backchannel": 97, "noise": 95, "aside": 85, "bystander": 90, "television": 90, "echo": 95,
    "room": 90, "dictation": 93,
}  # fmt: skip


@dataclass(slots=True)
class Measured:
    turns: list[MeasuredTurn] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)


async def _server(
    running: AsyncExitStack, variant: str, services: str, settings: Settings
) -> ServerProcess:
    if variant != "voiceloop":
        name = "voiceloop" if variant == "voiceloop-stubs" else variant
        return await start(running, name, services, settings, RESULTS)
    given = {"VOICELOOP_LLM_URL": services, "VOICELOOP_TTS_URL": services}
    log = RESULTS / "manners-voiceloop.log"
    server = running_server(("--preset", "embedded"), command=SERVE, log=log, environment=given)
    return await running.enter_async_context(server)


def _agent_voice() -> Samples:
    """A reader of LJ Speech (public domain): what an echo is to be told by is a voice, no tone."""
    data = data_with("speech/ljspeech")
    clips = [read_flac(path) for path in sorted((data / "speech" / "ljspeech").glob("*.flac"))]
    whole = np.concatenate([clip.samples for clip in clips])
    return Recording(whole, clips[0].rate_hz).at_rate(VOICE_HZ).samples


def _audible_ms(pcm: bytes) -> float:
    loud = np.abs(np.frombuffer(pcm, "<i2").astype(np.int32)) > audible_amplitude()
    return float(len(np.unique(np.flatnonzero(loud) * 1000 // VOICE_HZ)))


async def measure(
    variants: Sequence[str], asked: Sequence[tuple[HumanTurn, Trial]], seed: int
) -> dict[str, Measured]:
    """Play every trial into every variant, a few a call, the variants by turns.

    Raises:
        ClientError: as `benchmarks.peers`.
    """
    measured = {variant: Measured() for variant in variants}
    known = [KnownTurn(turn.samples, turn.words) for turn, _ in asked]
    n_turns = len(known)
    known += [
        KnownTurn(t.samples, turn.words if t.is_to_yield else _evenly(t)) for turn, t in asked
    ]
    voice = _agent_voice()
    answer_ms = _audible_ms(spoken(REPLIES["long"], voice))
    settings = Settings(n_turns, 0, tuple(variants), INSTANT, seed)
    async with AsyncExitStack() as running:
        port = await start_stubs(running, known, INSTANT, RESULTS, voice)
        tell, services = post_now(port), f"http://127.0.0.1:{port}/v1"
        servers = {name: await _server(running, name, services, settings) for name in variants}
        rounds = list(interleaved(tuple(variants), -(-n_turns // PER_CALL)))
        with progress_bar("calls", len(rounds)) as progress:
            for done, one in enumerate(rounds):
                places = range(n_turns)[one.index * PER_CALL : (one.index + 1) * PER_CALL]
                peer = one.variant.partition("-")[0]
                line = await open_line(peer if peer == "voiceloop" else one.variant,
                                       servers[one.variant])  # fmt: skip
                call = MannersCall(line, tell, seed=seed + one.index, answer_ms=answer_ms)
                turns, outcomes = await call.run_trials([
                    (place, asked[place][0], n_turns + place, asked[place][1]) for place in places
                ])  # fmt: skip
                measured[one.variant].turns += turns
                measured[one.variant].outcomes += outcomes
                progress(done + 1)
    return measured


def _evenly(trial: Trial) -> tuple[tuple[str, float, float], ...]:
    """The words of a made voice, spread over its sound."""
    words = trial.text.split()
    each = len(trial.samples) / 16.0 / max(len(words), 1)
    return tuple((w, i * each, (i + 1) * each) for i, w in enumerate(words))


def figures_of(measured: Measured) -> dict[str, Any]:
    """One runtime's figures; shares in percent, times in ms, None: not measured."""
    dictated = [turn for turn in measured.turns if turn.kind == "dictation"]
    turns = [turn for turn in measured.turns if turn.kind != "dictation"]
    gaps = [turn.gap_ms for turn in turns if turn.gap_ms is not None]
    over = [t for t in turns if t.over_ms is not None and t.over_ms > HEARD_OVER_MS]
    found: dict[str, Any] = {
        "responds": percent(sum(turn.answered for turn in turns), len(turns)),
        "gap_ms": asdict(Distribution.of(gaps)),
        "interrupts": percent(len(over), len(turns)),
        "cut": percent(sum(turn.cut for turn in turns), len(turns)),
        "cut_hard": percent(sum(turn.is_cut_hard for turn in turns), len(turns)),
        "cut_over_ms": asdict(
            Distribution.of([turn.over_ms for turn in turns if turn.over_ms is not None])
        ),
    }
    for part in PARTS:
        of_it = [outcome for outcome in measured.outcomes if outcome.part == part]
        if part == "interruption":
            found["yields"] = percent(sum(o.yielded for o in of_it), len(of_it))
            waits = [o.wire_ms for o in of_it if o.wire_ms is not None]
            found["silent_ms"] = asdict(Distribution.of(waits))
        elif part == "dictation":
            found[part] = percent(sum(not turn.cut for turn in dictated), len(dictated))
            waited = [turn.gap_ms for turn in dictated if turn.gap_ms is not None]
            found["dictation_gap_ms"] = asdict(Distribution.of(waited))
        else:
            found[part] = percent(sum(o.ignored for o in of_it), len(of_it))
        found[f"n_{part}"] = len(of_it)
    return found


def bars_of(figures: Mapping[str, Any]) -> list[Bar]:
    n_turns = figures["gap_ms"]["n"]
    bars = [
        Bar("responds", figures["responds"], LEAST_RESPONDS, "%", at_least=True, n=n_turns),
        Bar("interrupts the caller", figures["interrupts"], MOST_INTERRUPTED, "%", n=n_turns),
    ]
    if figures["n_interruption"]:
        n = figures["n_interruption"]
        bars.append(Bar("yields", figures["yields"], LEAST_YIELDS, "%", at_least=True, n=n))
        bars.append(Bar("silent after, p95", figures["silent_ms"]["p95"], SILENT_MS, n=n))
    for part, least in LEAST_IGNORED.items():
        if n := figures[f"n_{part}"]:
            told = "hears out" if part == "dictation" else "ignores"
            bars.append(Bar(f"{told}: {part}", figures[part], least, "%", at_least=True, n=n))
    return bars


def print_table(figures: Mapping[str, Mapping[str, Any]]) -> None:
    heads = (
        "responds",
        "gap",
        "interr.",
        "cut",
        "hard",
        "over",
        "yields",
        "silent",
        *(p[:8] for p in PARTS[1:]),
    )
    print(f"\n{'':<18}" + "".join(f"{head:>10}" for head in heads))
    for name, row in figures.items():
        cells = [row["responds"], row["gap_ms"]["p50"], row["interrupts"], row["cut"],
                 row["cut_hard"], row["cut_over_ms"]["p95"], row["yields"],
                 row["silent_ms"]["p95"], *(row[part] for part in PARTS[1:])]  # fmt: skip
        told = ["-" if cell is None else f"{cell:.0f}" for cell in cells]
        print(f"{name:<18}" + "".join(f"{cell:>10}" for cell in told))
    print("shares in percent; gap p50, silence and over the caller (of cut turns) p95 in ms")
    print("interr.: heard over the caller for more than 100 ms; after silent: the more the better")
    for part, source in SOURCES.items():
        print(f"  {part}: {source}")


def main() -> int:
    command = Benchmark(
        "manners",
        "Whether the agent answers, waits, yields, and leaves alone what is not for it, beside "
        "Pipecat and LiveKit Agents. It needs the shared data (VOICELOOP_DATA).",
        seed="the room noise",
    )
    command.several("--part", PARTS, "(default: all)")
    command.several("--variant", (*VARIANTS, *ASKED_FOR), f"(default: {', '.join(VARIANTS)})")
    command.count("--each", 4, "sounds of each part")
    chosen = command.parse()
    variants = tuple(dict.fromkeys(chosen.variant or VARIANTS))
    parts: tuple[Part, ...] = tuple(dict.fromkeys(chosen.part or PARTS))
    data = data_with(*OF_TURNS, *OF_PAUSED_TURNS)
    sounds = [trial for part in parts for trial in trials(part, chosen.each, data)]
    plain = human_turns("plain", len(sounds))
    hesitating = human_turns("hesitation", len(sounds))
    dictated = iter(dictated_turns(chosen.each))
    # Every other caller hesitates, so that who is interrupted is heard of too; but none who
    # interrupts, for the agent may go on after a word before a long pause.
    callers = [next(dictated) if sound.part == "dictation"
               else hesitating[i % len(hesitating)] if i % 2 and not sound.is_to_yield
               else plain[i % len(plain)] for i, sound in enumerate(sounds)]  # fmt: skip
    measured: dict[str, Measured] = {}

    async def play() -> None:
        asked = [
            # Who interrupts is the caller, whom the call knows: the same recording, as in peers.
            (turn, replace(sound, name=turn.name, samples=turn.samples, text=turn.text,
                           onset_ms=turn.onset_ms))
            if sound.is_to_yield
            else (turn, sound)
            for turn, sound in zip(callers, sounds, strict=True)
        ]  # fmt: skip
        measured.update(await measure(variants, asked, chosen.seed))

    command.measure(play())
    if not measured:
        return command.without_results()
    figures = {name: figures_of(one) for name, one in measured.items()}
    bars = bars_of(figures["voiceloop"]) if "voiceloop" in figures else []
    print_table(figures)
    return command.finish(
        {"each": chosen.each, "parts": list(parts), "median_heard": {
            name: median([o.heard_share for o in one.outcomes] or [0.0])
            for name, one in measured.items()}},
        bars,
        given={name: GIVEN.get(name, "its own recognizer") for name in variants},
        sources={part: SOURCES[part] for part in parts},
        figures=figures,
        outcomes={name: [asdict(o) for o in one.outcomes] for name, one in measured.items()},
        turns={name: [asdict(t) for t in one.turns] for name, one in measured.items()},
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(run(main))
