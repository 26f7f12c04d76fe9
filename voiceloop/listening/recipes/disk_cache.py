"""A cache of computed values: small JSON records in a folder outside the repository.

A record is found by its kind and by everything it was made from (audio, model files, settings), so
a change of either makes a new one and nothing here ever has to be invalidated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """``$VOICELOOP_CACHE``, else ``~/.cache/voiceloop``."""
    chosen = os.environ.get("VOICELOOP_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "voiceloop"


def digest(*parts: str | bytes) -> str:
    """A name for the sequence of parts."""
    found = hashlib.sha1(usedforsecurity=False)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def cached(kind: str, key: str, make: Callable[[], Any]) -> Any:
    """The record of this kind and key as JSON values; made and kept where there is none."""
    path = cache_folder() / kind / key[:2] / f"{key}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}")
    scratch.write_text(json.dumps(made), encoding="utf-8")
    scratch.replace(path)  # whoever reads at the same time finds a whole record or none
    return json.loads(json.dumps(made))
