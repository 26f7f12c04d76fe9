"""The place of models on disk: the Hugging Face cache, or a folder that a user named.

Owns the answer to "is it here, and whole?" Reads the cache's layout itself (``models--OWNER--NAME``
with ``refs`` and ``snapshots``), so that models fetched by any other program are found, and the
look costs no import and no network.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from voiceloop.models.model import Repo

JSON_BYTES = 16 * 1024 * 1024  # more than the index of any checkpoint


@dataclass(frozen=True, slots=True)
class Found:
    """One repository on disk. ``missing``: the patterns without a file; empty when it is whole."""

    folder: Path | None
    commit: str
    missing: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return self.folder is not None and not self.missing


def hub_folder(environ: Mapping[str, str] | None = None) -> Path:
    """The cache that huggingface_hub uses under this environment."""
    environ = os.environ if environ is None else environ
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(name):
            return Path(environ[name]).expanduser()
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "hub"
    base = Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "huggingface" / "hub"


def find_repo(repo: Repo, hub: Path) -> Found:
    """The repository's snapshot of its own revision; what lies here of another is another model."""
    place = hub / f"models--{repo.id.replace('/', '--')}"
    commit = _commit(place, repo.revision)
    folder = place / "snapshots" / commit
    if not commit or not folder.is_dir():
        return Found(None, "", absent_patterns(repo, ()))
    return Found(folder, commit, missing_files(folder, repo))


def _commit(place: Path, revision: str) -> str:
    try:
        return (place / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return revision


def is_wanted(name: str, repo: Repo) -> bool:
    """Whether a file of the repository is one of those that are fetched."""
    if any(fnmatch(name, pattern) for pattern in repo.ignored):
        return False
    return any(fnmatch(name, pattern) for pattern in repo.files)


def absent_patterns(repo: Repo, names: Iterable[str]) -> tuple[str, ...]:
    """Return what the repository needs at its top and none of these files is."""
    top = [name for name in names if "/" not in name and is_wanted(name, repo)]
    absent = [p for p in repo.needed if not any(fnmatch(name, p) for name in top)]
    if repo.weights and not any(fnmatch(name, p) for p in repo.weights for name in top):
        absent.append(f"weights ({' or '.join(repo.weights)})")
    return tuple(absent)


def missing_files(folder: Path, repo: Repo) -> tuple[str, ...]:
    """Return what the repository needs and the folder lacks, and absent shards by name."""
    names = [
        path.name for path in folder.iterdir() if path.is_file() and path.stat().st_size
    ]  # a link whose blob is gone is no file
    missing = list(absent_patterns(repo, names))
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        shards = set(read_json(index).get("weight_map", {}).values())
        missing += sorted(shards - set(names))
    return tuple(missing)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty where there is none, or none that can be read."""
    try:
        if path.stat().st_size > JSON_BYTES:
            return {}
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
