"""The machine, as far as a preset asks: cores, memory, GPUs, disk, installed packages.

Looked up without importing torch, which takes seconds.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

GPU_QUERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    name: str
    memory_mb: int


@dataclass(frozen=True, slots=True)
class Machine:
    """The facts. ``version`` gives a distribution's version, or None where it is not installed."""

    n_cores: int
    memory_mb: int | None  # available; None: this system does not say
    gpus: tuple[Gpu, ...]
    version: Callable[[str], str | None]


def this_machine() -> Machine:
    return Machine(n_cores(), available_memory_mb(), gpus(), installed_version)


def n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_mb() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024 // 1_000_000
    return None


def gpus(environ: Mapping[str, str] | None = None) -> tuple[Gpu, ...]:
    """NVIDIA devices as their own tool lists them; none where CUDA_VISIBLE_DEVICES hides all."""
    visible = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    tool = shutil.which("nvidia-smi")
    if tool is None or (visible is not None and visible.strip() in ("", "-1")):
        return ()
    command = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(
            command, capture_output=True, text=True, timeout=GPU_QUERY_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return _read_gpus(listed.stdout) if listed.returncode == 0 else ()


def _read_gpus(text: str) -> tuple[Gpu, ...]:
    found = []
    for line in text.splitlines():
        name, comma, mebibytes = line.rpartition(",")
        if comma and mebibytes.strip().isdigit():
            found.append(Gpu(name.strip(), int(mebibytes) * 1024 * 1024 // 1_000_000))
    return tuple(found)


def installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_file(distribution: str, name: str) -> Path | None:
    """A file of an installed distribution; None where the one or the other is not here."""
    try:
        path = Path(str(importlib.metadata.distribution(distribution).locate_file(name)))
    except importlib.metadata.PackageNotFoundError:
        return None
    return path if path.is_file() else None


def satisfies(requirement: str, version: str | None) -> bool:
    """Whether an installed version (None: none) is what "name" or "name==1.0" asks for."""
    wanted = requirement.partition("==")[2]
    return version == wanted if wanted else version is not None


def free_disk_mb(folder: Path) -> int:
    """Return the free space of the file system that ``folder`` will stand in once it is made."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free // 1_000_000
