"""What ``voiceloop worker`` is told on the command line. Imports nothing that takes time."""

from __future__ import annotations

import argparse
from pathlib import Path

WORKER_DESCRIPTION = (
    "Load models of a preset and serve them to the servers whose configuration names this address "
    "under [workers]. Both ends need the same workers.key (VOICELOOP_WORKERS_KEY)."
)
GATEWAY_DESCRIPTION = (
    "Run a server that holds no models: each part is a service, by its URL, or is held by workers "
    "on the network, which the table [workers] of the configuration names. What callers may ask "
    "for, voices and languages, is what these say. Settings come from --config, then the "
    "environment (VOICELOOP_<NAME>), then the flags below; the last one wins."
)
WORKER_SETTINGS = ("preset", "stt_model", "llm_model", "tts_model")


def add_worker_arguments(worker: argparse.ArgumentParser) -> None:
    worker.add_argument(
        "--role",
        action="append",
        required=True,
        choices=("engine", "recognizer", "voice"),
        help="what to hold; may be repeated",
    )
    worker.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="where; port 0 for any free one"
    )
    worker.add_argument(
        "--version",
        metavar="LABEL",
        default="",
        help="workers of one label and role hold the same model, of several labels any: servers "
        "refuse a worker that differs, and divide new calls among labels (default: none)",
    )
    worker.add_argument("--preset", metavar="NAME", help="whose models (default: auto)")
    worker.add_argument(
        "--config", type=Path, metavar="FILE", help="settings, as of serve: a TOML file"
    )
    for part, what in (("stt", "recognizer"), ("llm", "language model"), ("tts", "voice")):
        worker.add_argument(f"--{part}-model", metavar="NAME", help=f"another {what}, as of serve")
