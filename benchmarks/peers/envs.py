"""The environments of the peers, and of VoiceLoop as its page installs it.

Owns the pins of what VoiceLoop is measured against. Each gets a virtual environment of its own in
the cache folder, outside the repository; one that is there with the same pins is kept.
No account is needed, and nothing but the packages is fetched: both bring their models in wheels.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from time import monotonic

from benchmarks.harness.data_folder import ROOT
from clients.errors import ClientError

PINS: dict[str, tuple[str, ...]] = {
    "pipecat": ("pipecat-ai[openai,websocket]==1.14.0", "uvicorn==0.54.0"),
    "livekit": ("livekit-plugins-openai==1.8.9", "livekit-agents==1.8.9"),
    "voiceloop": ("--editable", str(ROOT)),  # torch and the voices are extras
}


class PeerNotInstalled(ClientError):
    """A peer's environment cannot be made."""


def folder() -> Path:
    """``$XDG_CACHE_HOME/voiceloop/peers``, by default under ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "voiceloop" / "peers"


def python_of(name: str) -> Path:
    """The interpreter of one peer's environment; made first where it is not there.

    Raises:
        PeerNotInstalled: pip could not install the pins; what it said stands on standard error.
    """
    place = folder() / name
    interpreter = place / "bin" / "python"
    stamp = place / "pins.txt"
    pins = "\n".join(PINS[name])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == pins:
        return interpreter
    began = monotonic()
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=False)
    command = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "-qq"]
    try:
        subprocess.run([*command, "--disable-pip-version-check", *PINS[name]], check=True)
    except subprocess.CalledProcessError as error:
        raise PeerNotInstalled(
            f"expected pip to install {', '.join(PINS[name])} into {place}, found that it ended "
            f"with {error.returncode}"
        ) from error
    stamp.write_text(pins, encoding="utf-8")
    print(f"made {place} in {monotonic() - began:.0f} s: {', '.join(PINS[name])}", flush=True)
    return interpreter
