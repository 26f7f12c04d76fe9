"""The locks of `voiceloop/deploy/locks`: `python -m tests.locks` resolves them anew, with uv.

One file for the base, for each extra, and for what builds a wheel: every package with its version
and the hashes of its files, for each Python and system that is served. Only names and hashes stand
in them, and whichever index is configured is asked. `constraints.txt` says the versions of what we
name ourselves; what those need is as new as it was on the day.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "voiceloop" / "deploy" / "locks"
BASE, BUILD = "base", "build"
PINNED = re.compile(r"(?m)^([a-z0-9-]+)==(\S+)")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def names() -> tuple[str, ...]:
    """Of all locks."""
    return (BASE, *project()["project"]["optional-dependencies"], BUILD)


def path_of(name: str) -> Path:
    return LOCKS / f"{name}.txt"


def pins_of(name: str) -> list[tuple[str, str]]:
    """Packages and versions; a package has several where systems differ."""
    return PINNED.findall(path_of(name).read_text(encoding="utf-8"))


def resolve(name: str) -> None:
    """Write one. Raises: CalledProcessError."""
    asked = project()["build-system"]["requires"] if name == BUILD else ()
    source = "-" if name == BUILD else "pyproject.toml"
    extra = () if name in (BASE, BUILD) else ("--extra", name)
    subprocess.run(
        [
            "uv", "pip", "compile", source, *extra, "--constraint", "constraints.txt",
            "--generate-hashes", "--universal", "--python-version", "3.11", "--no-emit-index-url",
            "--no-annotate", "--no-header", "--quiet", "--upgrade",
            "--output-file", str(path_of(name)),
        ],
        cwd=ROOT, input="\n".join(asked), text=True, check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


def main() -> int:
    if shutil.which("uv") is None:
        print("expected uv on the path, found none: pip install uv", file=sys.stderr)
        return 2
    LOCKS.mkdir(exist_ok=True)
    for name in names():
        resolve(name)
        print(f"{name}: {len(pins_of(name))} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
