"""The origin of figures: the commit, the machine and the moment, for every file of results."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Commit (with "+" where the checkout has changes), machine, Python and date, JSON values."""
    return {
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_name(),
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
            "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(),
        },
    }


def commit() -> str:
    """The short commit of the checkout this file lies in, or "unknown" outside one."""
    folder = Path(__file__).resolve().parent
    try:
        if Path(_git(folder, "rev-parse", "--show-toplevel")) != folder.parent:
            return "unknown"  # installed into somebody else's checkout
        head = _git(folder, "rev-parse", "--short=10", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(folder: Path, *arguments: str) -> str:
    result = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
