"""The engine's table: exactness, speed beside peers, latency after commit, sharing, speculation.

    python -m benchmarks.engine_bench --check [--resume] [--part NAME ...] [--model PATH] [--peers]

On a CPU peers run in the same process (llama.cpp in its own, see `llama_cpp_peer`) on the same
weights, in interleaved rounds, each pinned to `--threads`. A row that cannot be measured here (a
peer that is not installed, a model that is not trained yet) says so and counts as missed. Without
`--part` all of them run, in about ten minutes on two idle cores; each is written down as it ends,
and `--resume` leaves out those that stand there for the same commit, engine sources, model and
settings.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine import cpu as engine_cpu
from benchmarks.engine import drafting as engine_drafting
from benchmarks.engine import exactness as engine_exactness
from benchmarks.engine import peers as engine_peers
from benchmarks.engine import real_weights as engine_real_weights
from benchmarks.engine import restart as engine_restart
from benchmarks.engine import rows as engine_rows
from benchmarks.engine.models import SHAPES, embedded_model, sources, write_random_model
from benchmarks.engine.setting import Setting
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS, Bar
from clients.errors import ClientError
from clients.provenance import provenance
from engine.load.gguf import is_gguf

PEERS = "peers"
PARTS: dict[str, Callable[[Setting], list[Bar]]] = {
    "token_time": engine_cpu.token_time,
    "llama_cpp": engine_cpu.llama_cpp,
    "after_commit": engine_cpu.after_commit,
    "batch": engine_cpu.batch,
    "sharing": engine_cpu.sharing,
    "restarted": engine_restart.restarted,
    "under_speculation": engine_cpu.under_speculation,
    "rows": engine_rows.rows,
    "drafting": engine_drafting.drafting,
    "same_replies": engine_rows.same_replies,
    "quality": engine_exactness.quality,
    "real_weights": engine_real_weights.real_weights,
    PEERS: engine_peers.peers,
    **{name: partial(engine_exactness.fuzz, name) for name in engine_exactness.FUZZED},
}


class Progress:
    """The parts that have run, kept in a file. Those of another commit or setting are forgotten."""

    def __init__(self, path: Path, of: dict[str, Any]) -> None:
        self._path, self._of, self.parts = path, of, dict[str, dict[str, Any]]()
        if path.is_file():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
                self.parts = known["parts"] if known["of"] == of else {}
            except (ValueError, KeyError, TypeError) as error:
                raise ClientError(
                    f"expected the parts of an earlier run in {path}, found: {error}; remove it"
                ) from error

    def add(self, name: str, bars: list[Bar], notes: list[str], seconds: float) -> None:
        rows = [asdict(bar) for bar in bars]
        self.parts[name] = {"bars": rows, "notes": notes, "seconds": round(seconds, 1)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"of": self._of, "parts": self.parts}, indent=1) + "\n")

    def bars(self, names: Sequence[str]) -> list[Bar]:
        return [Bar(**row) for name in names for row in self.parts[name]["bars"]]


def measure(options: argparse.Namespace, names: Sequence[str], progress: Progress) -> None:
    """Run these parts."""
    with tempfile.TemporaryDirectory() as folder:
        model_dir = options.model or embedded_model()
        trained = model_dir is not None
        if model_dir is None:
            print("the embedded model is not trained yet: random weights of its shape instead")
            model_dir = write_random_model(Path(folder), SHAPES["12m"])
        for name in names:
            setting = Setting(model_dir, trained, options.threads, options.repeats, options.seed)
            print(f"{name}:", flush=True)
            started = time.monotonic()
            bars = PARTS[name](setting)
            progress.add(name, bars, setting.notes, time.monotonic() - started)
            print(f"  ({progress.parts[name]['seconds']:.0f} s)", flush=True)


def model_digest(folder: Path | None) -> str:
    """Of the weights, so that figures of other weights are not taken for these."""
    digest = hashlib.sha256()
    files = [folder] if folder and is_gguf(folder) else []
    for file in files or (sorted(folder.glob("*.safetensors")) if folder else ()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def parsed(arguments: Sequence[str] | None) -> tuple[Benchmark, argparse.Namespace]:
    command = Benchmark(
        "engine_bench",
        "The engine's table: exactness, speed beside peers, latency after commit, sharing, "
        "speculation. A run that is interrupted goes on with --resume.",
        seed="random words and places",
    )
    command.switch("--resume", "go on where a run was interrupted")
    command.several("--part", tuple(PARTS), "only this part")
    command.switch("--peers", f"the same as --part {PEERS}: llama.cpp on trained weights")
    command.parser.add_argument(
        "--model", type=Path, metavar="PATH",
        help="a model's folder, or a GGUF file (default: the embedded agent's)",
    )  # fmt: skip
    command.count("--threads", 1, "of the engine and its peers")
    command.count("--repeats", 5, "rounds of each measurement")
    options = command.parse(arguments)
    if options.model and not is_gguf(options.model):
        if not (options.model / "config.json").is_file():
            found = f"expected a model in {options.model}, found no config.json"
            command.parser.error(f"--model: {found}")
    return command, options


def main(arguments: Sequence[str] | None = None) -> int:
    command, options = parsed(arguments)
    torch.set_num_threads(options.threads)
    names = [PEERS] if options.peers else options.part or list(PARTS)
    model_dir = options.model or embedded_model()
    settings = {
        "threads": options.threads,
        "repeats": options.repeats,
        "trained": model_dir is not None,
        "weights": model_digest(model_dir),
    }
    commit = provenance()["commit"]
    # A commit does not tell apart two states of a tree that was edited between two runs.
    of = {**settings, "seed": options.seed, "commit": commit, "sources": sources()}
    progress = Progress(RESULTS / "engine_bench.json", of)
    due = [name for name in names if name not in progress.parts or not options.resume]
    measure(options, due, progress)
    return command.finish(
        settings, progress.bars(names), parts={name: progress.parts[name] for name in names}
    )


if __name__ == "__main__":
    sys.exit(run(main, "what had been measured is kept; --resume goes on"))
