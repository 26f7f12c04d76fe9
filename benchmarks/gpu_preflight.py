"""Compiles every kernel that a GPU is served by, for each kind of GPU, where there is none.

    python -m benchmarks.gpu_preflight [--fresh] [--all] [--capability 86]

For compute capability 7.5 (refused: plain torch serves there) to 12.0, under the Triton that is
installed, and for 9.0 under the one that GPU machines have too (`GPU_TRITON`, its wheel in a folder
of its own in the cache), `--jobs` at once. It fails (exit code 1) where a kernel does not compile
or asks for more shared memory than there is, where a thread spills registers, and where a pipelined
kernel copies nothing ahead.
What was compiled is kept by the digest of the engine's sources; `--fresh` forgets it. Where the
wheel cannot be had, its half is skipped and says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.engine.models import sources
from benchmarks.engine.preflight import SHARED_KIB, Variant
from benchmarks.harness.command_line import Benchmark, run
from benchmarks.harness.harness import RESULTS
from clients.command import EXIT_FAILED
from clients.provenance import provenance

GPU_TRITON = "3.6.0"  # torch 2.11, with which GPU images come, is built with it
INSTALL_S, COMPILE_S = 300.0, 900.0
ROOT = Path(__file__).parents[1]
# What changes a compilation: the engine, and what the preset asks of it.
ASKED = (
    "benchmarks/engine/preflight.py",
    "benchmarks/engine/models.py",
    "voiceloop/models/catalog.py",
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """One Triton, for one kind of GPU. wheel: where it lies; None for the installed one."""

    version: str
    wheel: Path | None
    capability: int

    @property
    def name(self) -> str:
        return f"triton {self.version} for {self.capability / 10}"


class NotCompiled(Exception):
    """The variants of one Triton could not be had; the message says what it told."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "voiceloop" / "preflight"


def wheel_of(version: str) -> Path | None:
    """The folder that holds a Triton's wheel; None where it cannot be had."""
    place = cache_folder() / f"triton-{version}"
    if (place / "triton" / "__init__.py").is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = place.with_name(f"{place.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:",
               "--disable-pip-version-check", "--target", str(partial),
               f"triton=={version}"]  # fmt: skip
    try:
        subprocess.run(command, check=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"triton {version}: skipped, its wheel cannot be had ({error})", file=sys.stderr)
        return None
    partial.rename(place)
    return place


def installed_triton() -> str:
    import triton

    return str(triton.__version__)


def digest() -> str:
    """Of all that decides what is compiled, and into what."""
    found = hashlib.sha256(sources().encode())
    for name in ASKED:
        found.update((ROOT / name).read_bytes())
    return found.hexdigest()[:16]


def start(wheel: Path | None, capability: int) -> subprocess.Popen[str]:
    """Compile all variants in a process of its own; wheel: whose Triton, None for the installed."""
    paths = [str(wheel)] if wheel is not None else []
    environment = {
        **{key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"},
        "PYTHONPATH": os.pathsep.join([*paths, str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "TRITON_CACHE_DIR": str(cache_folder() / "triton"),
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.engine.preflight", str(capability)], env=environment,
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> list[Variant]:
    """Raises: NotCompiled."""
    try:
        told, complaints = process.communicate(timeout=COMPILE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise NotCompiled(f"expected an end within {COMPILE_S:.0f} s, found none") from None
    if process.returncode:
        raise NotCompiled("\n".join(complaints.splitlines()[-12:]))
    return [Variant(**json.loads(line)) for line in told.splitlines() if line.startswith("{")]


def compiled(wanted: Sequence[Wanted], *, is_fresh: bool, n_jobs: int = 1) -> dict[str, Any]:
    """By Triton and capability: its variants, or the error; kept where there was none."""
    with ThreadPoolExecutor(n_jobs) as pool:
        results = pool.map(lambda one: _compiled(one, is_fresh=is_fresh), wanted)
        return {one.name: result for one, result in zip(wanted, results, strict=True)}


def _compiled(one: Wanted, *, is_fresh: bool) -> dict[str, Any]:
    kept = cache_folder() / f"{digest()}-{one.version}-{one.capability}.json"
    if kept.is_file() and not is_fresh:
        return json.loads(kept.read_text(encoding="utf-8"))  # type: ignore[no-any-return]
    began = time.monotonic()
    try:
        variants = [asdict(variant) for variant in finish(start(one.wheel, one.capability))]
    except NotCompiled as error:
        return {"error": str(error), "variants": []}
    seconds = round(time.monotonic() - began, 1)
    found = {"error": "", "variants": variants, "seconds": seconds}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(found), encoding="utf-8")
    return found


def faults_of(found: dict[str, Any]) -> list[str]:
    """What is wrong, a sentence each."""
    sentences = []
    for version, result in found.items():
        if result["error"]:
            sentences.append(
                f"{version}: expected all kernels to compile, found:\n{result['error']}"
            )
        for row in result["variants"]:
            variant = Variant(**row)
            sentences += [
                f"{version}, {variant.kernel} ({variant.served}; {variant.sizes}): {fault}"
                for fault in variant.faults()
            ]
    return sentences


def table_of(found: dict[str, Any]) -> str:
    """A line a kernel and Triton: variants, the most registers and shared memory of them."""
    lines = []
    for version, result in found.items():
        variants = [Variant(**row) for row in result["variants"]]
        lines.append(f"{version}: {len(variants)} variants in {result.get('seconds', 0)} s")
        for kernel in sorted({variant.kernel for variant in variants}):
            mine = [variant for variant in variants if variant.kernel == kernel]
            lines.append(
                f"  {kernel:<20} {len(mine):>3}  {max(v.registers for v in mine):>3} registers  "
                f"{max(v.shared_bytes for v in mine) / 1024:>5.0f} KiB shared  "
                f"{'ahead' if any(v.is_pipelined for v in mine) else ''}"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    command = Benchmark(
        "gpu_preflight", "Compile every kernel of the gpu preset for each GPU, without one.",
        check=False,
    )  # fmt: skip
    command.switch("--fresh", "compile again what is kept")
    command.switch("--all", "print every variant")
    command.several("--capability", [str(one) for one in SHARED_KIB], "86 for 8.6; without, all")
    command.count("--jobs", 2, "compiled at once")
    options = command.parse(arguments)
    installed = installed_triton()
    capabilities = [int(one) for one in options.capability or SHARED_KIB]
    wanted = [Wanted(installed, None, capability) for capability in capabilities]
    is_other_wanted = GPU_TRITON != installed and 90 in capabilities
    if is_other_wanted and (wheel := wheel_of(GPU_TRITON)) is not None:
        wanted.append(Wanted(GPU_TRITON, wheel, 90))
    found = compiled(wanted, is_fresh=options.fresh, n_jobs=options.jobs)
    path = RESULTS / "gpu_preflight.json"
    path.write_text(json.dumps({**provenance(), "tritons": found}, indent=1), encoding="utf-8")
    print(table_of(found))
    if options.all:
        for version, result in found.items():
            print("\n".join(f"{version} {json.dumps(row)}" for row in result["variants"]))
    faults = faults_of(found)
    for sentence in faults:
        print(f"FAILED {sentence}")
    return EXIT_FAILED if faults else 0


if __name__ == "__main__":
    sys.exit(run(main, "nothing is kept"))
