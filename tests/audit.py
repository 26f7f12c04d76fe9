"""What is installed from the locks, as a bill of materials, and what is known against it.

`python -m tests.audit --into DIR` writes an SBOM (CycloneDX) of each image's lock, then asks the
package index for advisories on every package of the locks, at its newest version there. Where no
index answers, or not for a package, the command says of how many; an advisory alone is a failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.locks import ROOT, names, path_of, pins_of

IMAGES = ("cpu", "gpu", "cluster")  # the locks of deploy/Containerfile
ASK_S = 45.0  # for all packages together


def write_sbom(name: str, folder: Path) -> Path:
    """Of one lock: each package, its version, and the hashes of its files."""
    written = folder / f"{name}.cdx.json"
    command = (
        sys.executable, "-m", "cyclonedx_py", "requirements", str(path_of(name)),
        "--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible",
        "--output-format", "JSON", "--output-file", str(written),
    )  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    told = json.loads(written.read_text(encoding="utf-8"))["components"]
    assert {(one["name"], one["version"]) for one in told} == set(pins_of(name)), written
    assert all(one["externalReferences"][0]["hashes"] for one in told), written
    return written


def advisories(pins: set[tuple[str, str]]) -> tuple[dict[str, list[str]], int]:
    """By package what is known against it, and of how many packages nobody could tell."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("".join(f"{name}=={version}\n" for name, version in sorted(pins)))
        file.flush()
        command = (
            sys.executable, "-m", "pip_audit", "--requirement", file.name, "--no-deps",
            "--disable-pip", "--format", "json", "--timeout", "5", "--progress-spinner", "off",
        )  # fmt: skip
        try:
            asked = subprocess.run(command, capture_output=True, text=True, timeout=ASK_S)
            found: dict[str, Any] = json.loads(asked.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            return {}, len(pins)
    told: dict[str, list[str]] = {}
    n_unknown = 0
    for one in found["dependencies"]:
        n_unknown += "skip_reason" in one
        for advisory in one.get("vulns", ()):
            told.setdefault(f"{one['name']} {one['version']}", []).append(advisory["id"])
    return told, n_unknown


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit", description=__doc__)
    parser.add_argument("--into", type=Path, default=Path("out/sbom"), metavar="DIR")
    folder = parser.parse_args().into
    folder.mkdir(parents=True, exist_ok=True)
    for name in IMAGES:
        print(f"bill of materials: {write_sbom(name, folder)}")
    newest = dict(sorted(pin for name in names() for pin in pins_of(name)))
    told, n_unknown = advisories(set(newest.items()))
    for package, known in sorted(told.items()):
        print(f"{package}: {', '.join(known)}")
    n_asked = len(newest)
    print(f"advisories: {len(told)} of {n_asked} packages, {n_unknown} could not be asked about")
    return int(bool(told))


if __name__ == "__main__":
    sys.exit(main())
