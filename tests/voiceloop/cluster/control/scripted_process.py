"""A process of a cluster without models: it says what it is told to, and drains at a signal.

    scripted_process.py FOLDER [worker|gateway ...]

Files in the folder script it: ``crash`` ends it at once with code 3, ``load`` has it load and
``hold`` drain until it is gone. What it was started with stands in ``started``, a line each time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

folder = Path(sys.argv[1])
drained = []
signal.signal(signal.SIGTERM, lambda *_: drained.append(True))
with (folder / "started").open("a") as file:
    settings = {name: text for name, text in os.environ.items() if name.startswith("VOICELOOP_")}
    file.write(json.dumps([os.getpid(), sys.argv[2:], settings]) + "\n")
if (folder / "crash").exists():
    sys.exit(3)
print("this is no report", flush=True)
try:
    while not drained or (folder / "hold").exists():
        is_loading = (folder / "load").exists()
        state = "draining" if drained else "loading" if is_loading else "ready"
        print(json.dumps({"state": state, "address": f"127.0.0.1:{os.getpid()}"}), flush=True)
        time.sleep(0.02)
except BrokenPipeError:
    (folder / "unread").touch()
