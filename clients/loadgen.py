"""Simulated callers: ``python -m clients.loadgen URL --calls N``.

Every caller is a whole call of the bundled script, barge-in included, in one of its voices, or of
a script of your own (``--script``), played in real time over a socket of its own. Callers begin
spread over ``--ramp`` seconds, as people do. The figures are those of ``turn_latency``, over all
calls; a caller whose call broke off is counted, not dropped, and after ctrl-C the calls that had
ended are told as the part they are. Goodput is what is left of the load when only turns count that
a person would call well answered: not cut into, and heard within ``--within`` ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from clients.arguments import DEFAULT_URL, number, whole_number
from clients.call.open_call import CallOptions
from clients.call.result import CallResult
from clients.call.script import CallScript, Utterance, load_call, load_utterances
from clients.call.simulated_call import SimulatedCall
from clients.command import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED, run
from clients.connection import RATE_HZ, own_key
from clients.errors import ClientError
from clients.outputs import check_file, writing
from clients.progress import progress_bar
from clients.provenance import provenance
from clients.report.call_summary import summary_of
from clients.resuming import ResumingConnection

# Query parameters that only VoiceLoop knows; other servers take no notice of them.
EXTRAS = {"greeting": "1", "voiceloop.timeline": "1"}


@dataclass(frozen=True, slots=True)
class Load:
    """``n_calls`` calls, at most ``at_once`` of them together, begun over ``ramp_s`` seconds.

    extras: query parameters beside those of the URL. script: None for the bundled call.
    """

    url: str = DEFAULT_URL
    n_calls: int = 1
    at_once: int = 1
    ramp_s: float = 0.0
    seed: int = 0
    key: str | None = None
    n_turns: int | None = None
    within_ms: float = 800.0
    extras: Mapping[str, str] = field(default_factory=lambda: dict(EXTRAS))
    script: CallScript | None = None

    @property
    def call(self) -> CallScript:
        return self.script or load_call()


@dataclass(slots=True)
class LoadResult:
    """``elapsed_s``: from the first call's beginning to the last one's end. ``broken``: why."""

    calls: list[CallResult] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    elapsed_s: float = 0.0
    n_resumed: int = 0  # times that a call went on over another line

    @property
    def n_ended(self) -> int:
        return len(self.calls) + len(self.broken)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Turns answered within ``within_ms`` and not cut into.

    ``share`` is of all turns of the calls that ended, those of broken calls included.
    """

    within_ms: float
    n_good: int
    share: float
    per_minute: float


def goodput_of(load: Load, result: LoadResult, n_turns_a_call: int) -> Goodput:
    """A turn without an answer, or that the agent cut into, has no gap and is none of the good."""
    gaps = [turn.gap_ms for call in result.calls for turn in call.turns if not turn.cut_in]
    n_good = sum(gap is not None and gap <= load.within_ms for gap in gaps)
    n_turns = max(1, result.n_ended * n_turns_a_call)
    per_minute = 60.0 * n_good / max(1e-9, result.elapsed_s)
    return Goodput(load.within_ms, n_good, round(n_good / n_turns, 4), round(per_minute, 2))


def voices_of(load: Load) -> list[tuple[str, tuple[Utterance, ...]]]:
    """The utterances of each of the call's voices, read and resampled once for all callers."""
    script = load.call
    return [
        (voice, load_utterances(script, voice, RATE_HZ)[: load.n_turns]) for voice in script.voices
    ]


async def run_load(
    load: Load, progress: Callable[[int], None] | None = None, result: LoadResult | None = None
) -> LoadResult:
    """Place all calls; ``progress`` gets the number that have ended.

    ``result`` is filled as they end: what a caller has of it who interrupts this.
    """
    voices = voices_of(load)
    free = asyncio.Semaphore(load.at_once)
    result = result or LoadResult()
    started_at = time.monotonic()

    async def caller(index: int) -> None:
        voice, utterances = voices[index % len(voices)]
        begins_at = started_at + load.ramp_s * index / max(1, load.n_calls)
        await asyncio.sleep(max(0.0, begins_at - time.monotonic()))
        async with free:
            try:
                connection = await ResumingConnection.open(
                    load.url, key=load.key, extras=dict(load.extras)
                )
                options = CallOptions(seed=load.seed + index)
                call = SimulatedCall(connection, utterances, voice=voice, options=options)
                try:
                    result.calls.append(await call.run())
                finally:
                    result.n_resumed += connection.n_resumed
            except ClientError as error:
                result.broken.append(str(error))
            result.elapsed_s = time.monotonic() - started_at
            if progress is not None:
                progress(result.n_ended)

    async with asyncio.TaskGroup() as group:
        for index in range(load.n_calls):
            group.create_task(caller(index))
    return result


def figures(load: Load, result: LoadResult) -> dict[str, Any]:
    """JSON values: provenance, the load, the figures of the calls that went through.

    ``partial`` where not all calls have ended.
    """
    return {
        **provenance(),
        "partial": "interrupted" if result.n_ended < load.n_calls else None,
        "seed": load.seed,
        "at_once": load.at_once,
        "broken_calls": len(result.broken),
        "broken": list(result.broken),
        "resumed": result.n_resumed,
        "goodput": asdict(goodput_of(load, result, len(load.call.turns[: load.n_turns]))),
        **summary_of(result.calls),
    }


def print_figures(data: dict[str, Any]) -> None:
    n_expected = data["turns_with_expected_words"]  # none of a script that names no words
    worded = f", {data['turns_with_words_found']} of {n_expected} with the expected words"
    print(
        f"{data['calls']} calls ({data['broken_calls']} broke off, {data['resumed']} resumed), "
        f"{data['n_turns']} turns, "
        f"{data['unanswered']} unanswered, {data['cut_ins']} cut-ins{worded if n_expected else ''}"
    )
    print(f"{'ms':<26}{'n':>5}{'p50':>9}{'p90':>9}{'p95':>9}{'p99':>9}{'most':>9}")
    for key in (
        "gap_ms",
        "audible_ms",
        "barge_in_ducked_ms",
        "barge_in_ducked_buffered_ms",
        "barge_in_wire_ms",
        "barge_in_audible_ms",
    ):
        row = data[key]
        cells = (row[name] for name in ("p50", "p90", "p95", "p99", "most"))
        print(
            f"{key.removesuffix('_ms').replace('_', ' '):<26}{row['n']:>5}"
            + "".join("        –" if value is None else f"{value:>9.1f}" for value in cells)
        )
    good = data["goodput"]
    print(
        f"goodput: {good['n_good']} turns within {good['within_ms']:.0f} ms and not cut into, "
        f"{100 * good['share']:.1f} % of all, {good['per_minute']:.1f} a minute"
    )
    for error, n_times in Counter(data["broken"]).most_common():
        print(f"broken, {n_times} times: {error}")


def parser() -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(
        prog="python -m clients.loadgen",
        description="Simulated callers against a running server: whole calls in real time, and the "
        "figures of all of them. Exits with 1 where a call broke off or a turn got no answer.",
    )
    arguments.add_argument(
        "url",
        nargs="?",
        metavar="URL",
        default=DEFAULT_URL,
        help="the server (default: %(default)s)",
    )
    arguments.add_argument(
        "--calls", type=whole_number(1), default=1, metavar="N",
        help="how many calls in all (default: %(default)s)",
    )  # fmt: skip
    arguments.add_argument(
        "--at-once",
        type=whole_number(1),
        metavar="N",
        help="at most so many together (default: all)",
    )
    arguments.add_argument(
        "--ramp", type=number("seconds", at_least=0.0), default=5.0, metavar="S",
        help="seconds over which the calls begin (default: %(default)g)",
    )  # fmt: skip
    arguments.add_argument(
        "--turns", type=whole_number(1), metavar="N",
        help="only the first turns of each call (default: all)",
    )  # fmt: skip
    arguments.add_argument(
        "--script", type=Path, metavar="FILE",
        help="a call of your own: TOML with [[turns]], each name, text, after (\"agent\" or "
        "\"barge_in\") and file, a mono 16-bit WAV or FLAC there (default: the bundled call)",
    )  # fmt: skip
    arguments.add_argument(
        "--within", type=number("ms", above=0.0), default=800.0, metavar="MS",
        help="ms within which an answer is a good one (default: %(default)g)",
    )  # fmt: skip
    arguments.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N",
        help="seed of the room noise (default: %(default)s)",
    )  # fmt: skip
    arguments.add_argument(
        "--key",
        help="sent as a bearer token (default: to this machine the first of VOICELOOP_KEYS)",
    )
    arguments.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the figures to this file"
    )
    return arguments


def command() -> int:
    chosen = parser().parse_args()
    load = Load(
        chosen.url,
        chosen.calls,
        chosen.at_once or chosen.calls,
        chosen.ramp,
        chosen.seed,
        chosen.key or own_key(chosen.url),
        chosen.turns,
        chosen.within,
        script=load_call(chosen.script) if chosen.script is not None else None,
    )
    if chosen.json is not None:
        check_file(chosen.json)
    result = LoadResult()
    try:
        with progress_bar("calls", load.n_calls) as progress:
            asyncio.run(run_load(load, progress, result))
    except KeyboardInterrupt:
        print(f"interrupted: {result.n_ended} of {load.n_calls} calls had ended", file=sys.stderr)
        if not result.n_ended:
            return EXIT_INTERRUPTED
    if not result.calls:
        for error in dict.fromkeys(result.broken):
            print(f"no call went through: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    data = figures(load, result)
    if chosen.json is not None:
        with writing(chosen.json):
            chosen.json.write_text(json.dumps(data, indent=1) + "\n")
    print_figures(data)
    if data["partial"]:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if result.broken or data["unanswered"] else 0


if __name__ == "__main__":
    sys.exit(run(command, loss="no figures were written"))
