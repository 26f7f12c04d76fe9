"""Where dialogues and recorded speech are read from."""

from __future__ import annotations

import os
from pathlib import Path

from clients.errors import ClientError

ROOT = Path(__file__).resolve().parents[2]
# What the turns of the endpointing set, and the human callers, are made of.
OF_TURNS = ("speech/manifest.jsonl", "speech/commands.jsonl", "speech/noise", "dialogues")
# And the turns with the pauses that people made.
OF_PAUSED_TURNS = (
    "speech/manifest.jsonl", "speech/noise", "speech/slots.jsonl", "speech/orders.jsonl",
    "speech/calls.jsonl",
)  # fmt: skip


class DataMissing(ClientError):
    """The shared data, or the part of it that is asked for, is not here."""


def data_folder() -> Path:
    """$VOICELOOP_DATA, else the folder shared/data beside the checkout; it may not exist."""
    return Path(os.environ.get("VOICELOOP_DATA") or ROOT.parent / "shared" / "data")


def data_with(*names: str, folder: Path | None = None) -> Path:
    """The data folder, or the one given, once it is seen to hold these.

    Raises:
        DataMissing: it does not.
    """
    folder = folder or data_folder()
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        found = f"no {', no '.join(missing)} there" if folder.is_dir() else "no such folder"
        raise DataMissing(
            f"expected the shared data ({', '.join(names)}) in {folder.absolute()}, found {found}: "
            "set VOICELOOP_DATA to the folder of dialogues/ and speech/"
        )
    return folder
