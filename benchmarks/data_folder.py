"""Where dialogues and recorded speech are read from."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def data_folder() -> Path:
    """$VOICELOOP_DATA, else the folder shared/data beside the checkout; it may not exist."""
    return Path(os.environ.get("VOICELOOP_DATA") or ROOT.parent / "shared" / "data")
