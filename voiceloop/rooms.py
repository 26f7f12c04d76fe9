"""The packages beside this one, whatever else of their names stands on the path.

``engine``, ``audio`` and ``clients`` are plain names: a project that VoiceLoop runs in may have an
``audio/`` of its own on its PYTHONPATH. The processes of VoiceLoop take theirs from the folder that
``voiceloop`` itself came from; every other import goes its usual way.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

ROOMS = ("engine", "audio", "clients")
HOME = Path(__file__).resolve().parents[1]


class OwnRooms(MetaPathFinder):
    """Finds the rooms in ``home`` and nothing else."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [str(self._home)]) if name in ROOMS else None


def prefer_own_rooms() -> None:
    """Prefer the rooms of this copy for a process of VoiceLoop's own, before it imports one of
    them. May be called twice.
    """
    if not any(isinstance(finder, OwnRooms) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnRooms(HOME))
