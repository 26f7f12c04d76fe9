"""Make one virtual environment for each real client; their requirements exclude one another.

    python tests/interop/make_envs.py [FOLDER]      (default: out/interop)

An environment that is there already with the same pins is kept. Owns the pins.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PINS: dict[str, tuple[str, ...]] = {
    "openai": ("openai==3.52.0", "websockets"),
    "agents": ("openai-agents==0.24.0", "websockets"),
    "pipecat": ("pipecat-ai[openai,websocket]==1.14.0",),
    "livekit": ("livekit-plugins-openai==1.8.9",),
}


def make(folder: Path, name: str) -> None:
    place = folder / name
    stamp = place / "pins.txt"
    pins = "\n".join(PINS[name])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == pins:
        return
    print(f"making {place} with {', '.join(PINS[name])}", flush=True)
    venv.create(place, with_pip=True, clear=True)
    python = place / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", *PINS[name]], check=True)
    stamp.write_text(pins, encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "interop"
    for name in PINS:
        make(folder, name)


if __name__ == "__main__":
    main()
