"""The engine's table: exactness, speed beside peers, latency after commit, sharing, speculation.

    python -m benchmarks.engine_bench --check [--part NAME ...] [--model DIR] [--json]
    python -m benchmarks.engine_bench --gpu [--part NAME ...]

On a CPU peers run in the same process (llama.cpp in its own, see `llama_cpp_peer`) on the same
weights, in interleaved rounds, each pinned to `--threads`. A row that cannot be measured here (a
peer that is not installed, a model that is not trained yet) says so and counts as missed. `--gpu`
runs the parts of `engine_gpu` instead, which write their rows as they go.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from benchmarks import engine_cpu, engine_exactness
from benchmarks.engine_models import SHAPES, embedded_model, write_random_model
from benchmarks.engine_setting import Setting
from benchmarks.harness import Bar, bar_table, results, write_results
from engine.types import EngineError

PARTS: dict[str, Callable[[Setting], list[Bar]]] = {
    "token_time": engine_cpu.token_time,
    "llama_cpp": engine_cpu.llama_cpp,
    "after_commit": engine_cpu.after_commit,
    "batch": engine_cpu.batch,
    "sharing": engine_cpu.sharing,
    "under_speculation": engine_cpu.under_speculation,
    "drafting": engine_cpu.drafting,
    "quality": engine_exactness.quality,
    "served": engine_exactness.served,
    "families": engine_exactness.families,
    "speculation": engine_exactness.speculation,
    "branches": engine_exactness.branches,
    "revisions": engine_exactness.revisions,
    "graphs": engine_exactness.graphs,
}


def measure(options: argparse.Namespace) -> tuple[list[Bar], bool]:
    """The bars of the chosen parts, and whether the model is a trained one."""
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        model_dir = options.model or embedded_model()
        trained = model_dir is not None
        if model_dir is None:
            print("the embedded model is not trained yet: random weights of its shape instead")
            model_dir = write_random_model(Path(folder), SHAPES["12m"])
        setting = Setting(model_dir, trained, options.threads, options.repeats, options.seed)
        for name in options.part or PARTS:
            print(f"{name}:", flush=True)
            started = time.monotonic()
            bars += PARTS[name](setting)
            print(f"  ({time.monotonic() - started:.0f} s)", flush=True)
    return bars, trained


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="engine_bench", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--check", action="store_true", help="exit 1 where a bar is missed")
    parser.add_argument("--gpu", action="store_true", help="the parts that need a GPU instead")
    parser.add_argument("--part", action="append", help="only this part (again for more)")
    parser.add_argument("--model", type=Path, help="a model folder instead of the embedded one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args(arguments)
    if options.gpu:
        from benchmarks import engine_gpu

        return engine_gpu.main(options.part)
    unknown = set(options.part or ()) - set(PARTS)
    if unknown:
        parser.error(f"--part: expected among {', '.join(PARTS)}, found {', '.join(unknown)}")
    torch.set_num_threads(options.threads)
    try:
        bars, trained = measure(options)
    except EngineError as error:
        print(error, file=sys.stderr)
        return 2
    data = results(
        "engine_bench",
        options.seed,
        {"threads": options.threads, "repeats": options.repeats, "trained": trained},
        bars,
    )
    path = write_results(data)
    print(json.dumps(data, indent=1) if options.json else f"{bar_table(bars)}\nresults: {path}")
    return 0 if all(bar.holds for bar in bars) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
