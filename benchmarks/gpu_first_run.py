"""All that is to be known of the first GPU, in one command that may be run until it is done.

    python -m benchmarks.gpu_first_run [--minutes 25] [--command-minutes 9] [--part NAME ...]
        [--out DIR] [--device reference] [--check]

Parts run in the order of what they settle: truth (does it say what the model says, in any company,
drafted, bound, cancelled?), kernels (right? how near to a copy's bandwidth?), where
a step's time goes, whether anything is compiled, allocated or waited for late, then speed: replies
side by side, one beside callers that speak, one beside another process, a cold prompt, 64 callers.
What a model of bytes, arithmetic and launches expects (`benchmarks.engine.gpu_model`) stands beside
what was measured.
`--minutes` is the time of all runs together, `--command-minutes` that of one, for machines that end
a command: rows are written as they are known, and the next run goes on. It needs torch, Triton,
numpy, safetensors, tokenizers and jinja2, and makes its weights on the device; no network.
Each row is a process of its own with a time limit; one that crashed or hung twice is left alone.
Without a GPU it prints what the model expects. On the device "reference", torch in the kernels'
place, it runs `truth` alone, and plants wrong kernels that `truth` has to find.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import gpu, gpu_model
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, bar_table
from clients.command import EXIT_BAD_INPUT, EXIT_FAILED
from engine.types import EngineConfig

MODULE = "benchmarks.gpu_first_run"
ROW_S = 300.0  # the longest row: 50 replies in six companies
CHUNK = EngineConfig().step_tokens  # rows of one prefill step, as served


def apart(key: str) -> dict[str, Any]:
    return gpu.measure_apart(MODULE, key, ROW_S)


def table_of(data: dict[str, Any]) -> str:
    """Each row that has a prediction: what was expected, what was found, and their ratio.

    What is expected is of a card that copies faster or slower than this one: scaled so.
    """
    slower = gpu_model.BANDWIDTH_GB_S / data.get("bandwidth_gb_s", gpu_model.BANDWIDTH_GB_S)
    lines = [f"{'':<58} {'expected':>9} {'found':>9}  found / expected"]
    for key, row in data["rows"].items():
        if row.get("error"):
            lines.append(f"{key[:58]:<58} FAILED: {row['error']}")
        elif "not_measured" in row:
            lines.append(f"{key[:58]:<58} not measured: {row['not_measured']}")
        elif "predicted" in row:
            expected, found = row["predicted"] * slower, row["measured"]
            lines.append(
                f"{key[:58]:<58} {expected:>9.2f} {found:>9.2f} {row['unit']:<3} "
                f"{found / expected:>6.2f}"
            )
        elif key.startswith("truth/"):
            lines.append(f"{key[:58]:<58} right")
    return "\n".join(lines)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    command = Benchmark("gpu_first_run", "All that is to be known of the first GPU.")
    command.count("--minutes", 25, "for all runs together")
    command.count("--command-minutes", 9, "for this run; no row begins in its last two")
    command.several("--part", tuple(gpu.PARTS), "only this part")
    command.choice("--device", ("cuda", "reference"), gpu.DEVICE, "where kernels run, or torch")
    command.parser.add_argument("--out", type=Path, metavar="DIR", help="where results go")
    command.parser.add_argument("--row", help=argparse.SUPPRESS)  # this one, here, as JSON
    return command.parse(arguments)


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    options = parsed(arguments)
    gpu.use(options.device)
    results = options.out or results
    if options.row:
        part, _, name = options.row.partition("/")
        measure = next(measure for row, measure in gpu.PARTS[part]() if row == name)
        print(json.dumps(gpu.measured(measure)))
        return 0
    is_cuda = gpu.DEVICE == "cuda"
    if is_cuda:
        print(f"{bar_table(gpu_model.bars(CHUNK))}\n")
    if is_cuda and not torch.cuda.is_available():
        print("gpu_first_run: expected a CUDA GPU, found none", file=sys.stderr)
        return EXIT_BAD_INPUT
    # A row takes two minutes at most, a model's weights and graphs included.
    command_s = 60.0 * max(1, options.command_minutes - 2)
    rows = gpu.Rows(
        results / "gpu_first_run.json", command_s=command_s, total_s=60.0 * options.minutes
    )
    parts = options.part or (list(gpu.PARTS) if is_cuda else ["truth"])
    is_done = all(rows.run(part, gpu.PARTS[part](), apart) for part in parts)
    table = table_of(rows.data)
    (results / "gpu_first_run.txt").write_text(f"{table}\n", encoding="utf-8")
    print(f"\n{rows.data['device']}, a copy {rows.data['bandwidth_gb_s']} GB/s\n{table}")
    has_failed = any(row.get("error") for row in rows.data["rows"].values())
    return EXIT_FAILED if has_failed or not is_done else 0


if __name__ == "__main__":
    sys.exit(run(main, "rows that were measured are kept; run it again to go on"))
