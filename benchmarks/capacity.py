"""How many calls one machine holds: ``python -m benchmarks.capacity [--most 16]``.

Plays the bundled call 1, 2, 4, 8, ... times at once into one server of the embedded preset, each
caller in real time and begun a little after the one before, and doubles until the gap's p95 breaks
a second. For each level: the gap, where the milliseconds go (medians of the waterfall's stages),
cut-ins, and the goodput: turns answered within 800 ms and not cut into. A run that is interrupted
writes the levels that were done.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.harness.command_line import (
    benchmark_parser,
    early_end,
    exit_code,
    run,
    without_results,
)
from benchmarks.harness.harness import RESULTS, results, write_results
from clients.arguments import whole_number
from clients.call.script import load_call
from clients.connection import own_key
from clients.loadgen import Load, figures, run_load
from clients.outputs import prepare_folder
from clients.report.stage_colors import color_of
from clients.report.waterfall import stage_names
from clients.report.waterfall_png import check_matplotlib
from clients.server_process import running_server

BROKEN_P95_MS = 1000.0
GOOD_MS = 800.0
APART_S = 0.73  # between two callers: not a multiple of any frame, so that their turns fall apart


async def measure(
    most: int, n_turns: int, seed: int, rows: list[dict[str, Any]], *, admits: bool = False
) -> None:
    """Double the callers until the gap breaks.

    admits: the server refuses whom it has no room for, and callers are doubled up to ``most``.
    ``rows`` is filled level by level: figures as JSON values.

    Raises:
        ClientError: the server did not start.
    """
    n_calls = 1
    log = RESULTS / "capacity.log"
    # What breaks where is to be seen, so nobody is refused before it does.
    lets_all_in = {"VOICELOOP_LIMITS_ADMIT_BY_LOAD": str(admits).lower()}
    async with running_server(("--preset", "embedded"), log=log, environment=lets_all_in) as server:
        while n_calls <= most:
            load = Load(
                server.url, n_calls, at_once=n_calls, ramp_s=APART_S * n_calls, seed=seed,
                n_turns=n_turns, within_ms=GOOD_MS, key=own_key(server.url),
            )  # fmt: skip
            result = await run_load(load)
            rows.append(
                {"n_calls": n_calls, "resident_mb": server.resident_mb(), **figures(load, result)}
            )
            show(rows[-1])
            if not admits and not holds(rows[-1]):
                break
            n_calls *= 2


def holds(row: dict[str, Any]) -> bool:
    """Whether every call went through and was answered in time."""
    p95 = row["gap_ms"]["p95"]
    return not row["broken_calls"] and p95 is not None and p95 <= BROKEN_P95_MS


def show(row: dict[str, Any]) -> None:
    gap = row["gap_ms"]
    stages = ", ".join(f"{name} {ms:g}" for name, ms in row["stage_p50_ms"].items() if ms >= 1)
    print(
        f"{row['n_calls']:>4} calls: gap p50 {gap['p50']}, p95 {gap['p95']} ms of {gap['n']} turns;"
        f" {row['cut_ins']} cut in, {row['unanswered']} unanswered, {row['broken_calls']} broken;"
        f" {row['goodput']['per_minute']} good turns a minute; {stages}",
        flush=True,
    )


def plot(data: dict[str, Any], path: Path) -> None:
    """The curves of the gap and of the good turns over the callers, and the stages of the gap."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = data["levels"]
    places = range(len(rows))
    figure, (curve, parts) = pyplot.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for key in ("p50", "p95"):
        curve.plot(places, [row["gap_ms"][key] for row in rows], "o-", label=f"gap {key}")
    curve.axhline(BROKEN_P95_MS, color="grey", linestyle=":")
    curve.set(ylabel="ms", ylim=(0, None), xlabel="calls at once")
    curve.legend(loc="upper left")
    good = curve.twinx()
    per_minute = [row["goodput"]["per_minute"] for row in rows]
    good.plot(places, per_minute, "s--", color="C2", label="good turns")
    good.set(ylabel=f"turns a minute within {GOOD_MS:.0f} ms, not cut into", ylim=(0, None))
    good.legend(loc="lower right")
    below = [0.0] * len(rows)
    for name in stage_names():
        heights = [row["stage_p50_ms"].get(name, 0.0) for row in rows]
        if any(heights):
            parts.bar(places, heights, bottom=below, label=name, color=color_of(name))
            below = [b + h for b, h in zip(below, heights, strict=True)]
    parts.set(ylabel="ms, median of each stage", xlabel="calls at once")
    parts.legend(fontsize=7)
    for axes in (curve, parts):
        axes.set_xticks(places, [str(row["n_calls"]) for row in rows])
    figure.suptitle(f"commit {data['commit']}, {data['machine']['cpu']}", fontsize=8)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    n_turns = len(load_call().turns)
    parser = benchmark_parser(
        "capacity",
        "How many calls one machine holds: the bundled call 1, 2, 4, ... times at once, doubled "
        "until the gap's p95 breaks a second. A run that is interrupted writes the levels done.",
    )
    parser.add_argument(
        "--most", type=whole_number(1), default=16, metavar="N",
        help="calls at once at most (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--turns", type=whole_number(1, n_turns), default=n_turns, metavar="N",
        help="only the first turns of each call (default: all %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N",
        help="seed of the room noise (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--admit", action="store_true",
        help="let the server refuse callers it has no room for, and tell how many it let in",
    )  # fmt: skip
    chosen = parser.parse_args()
    check_matplotlib("the picture of the results")
    prepare_folder(RESULTS)
    rows: list[dict[str, Any]] = []
    partial = early_end(measure(chosen.most, chosen.turns, chosen.seed, rows, admits=chosen.admit))
    if partial and not rows:
        return without_results(partial)
    holding = [row["n_calls"] for row in rows if holds(row)]
    data = results(
        "capacity",
        chosen.seed,
        {"most": chosen.most, "turns": chosen.turns, "admit": chosen.admit},
        [],
        partial=partial,
        levels=rows,
        holds=max(holding, default=0),
    )
    path = write_results(data)
    if partial is None:
        plot(data, path.with_suffix(".png"))
    print(f"p95 within a second up to {data['holds']} calls; results: {path}")
    return exit_code((), partial, is_checked=False)


if __name__ == "__main__":
    sys.exit(run(main))
