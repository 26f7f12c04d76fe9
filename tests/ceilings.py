"""Lists what has grown large: a warning to look for the second noun, never a refusal.

    python -m tests.ceilings

Files past 500 lines, folders past 20 files, and classes with more than 12 attributes that change
after construction, what they inherit counted. Nothing is split, merged or moved to please a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tests.state import ROOT, states
from tests.test_layering import python_files

ROOMS = ("voiceloop", "engine", "audio", "clients", "tests", "benchmarks")
MOST_LINES = 500
MOST_FILES = 20
MOST_CHANGED = 12


def long_files() -> Iterator[str]:
    for path in (path for room in ROOMS for path in python_files(room)):
        n_lines = len(path.read_text(encoding="utf-8").splitlines())
        if n_lines > MOST_LINES:
            yield f"{n_lines:5} lines       {path.relative_to(ROOT)}"


def crowded_folders() -> Iterator[str]:
    counts = Counter(path.parent for room in ROOMS for path in python_files(room))
    for folder, count in counts.items():
        if count > MOST_FILES:
            yield f"{count:5} files       {folder.relative_to(ROOT)}/"


def restless_classes() -> Iterator[str]:
    for state in states(*(ROOT / room for room in ("voiceloop", "engine", "audio", "clients"))):
        if len(state.changed) > MOST_CHANGED:
            where = state.path.relative_to(ROOT)
            yield f"{len(state.changed):5} attributes  {state.name} ({where})"


def main() -> None:
    for finder in (long_files, crowded_folders, restless_classes):
        for line in sorted(finder(), reverse=True):
            print(line)


if __name__ == "__main__":
    main()
