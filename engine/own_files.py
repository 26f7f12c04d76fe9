"""Owns who may have written what the engine reads back: its user or root, and nobody else.

What is checked is a descriptor, and what is read is the same one. A path could come to mean another
file between the two, where somebody else owns a folder above it (``sudo`` in another's home).
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(name: str) -> Path:
    """`$XDG_CACHE_HOME/voiceloop/NAME`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "voiceloop" / name


@contextmanager
def own_folder(path: Path) -> Iterator[Path]:
    """The folder, made where it is not there, as a path that stays the same folder meanwhile.

    Raises: OSError: it cannot be made or opened, is a link, or others may write in it.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = _opened(path, os.O_DIRECTORY)
    try:
        yield through(descriptor, path)
    finally:
        os.close(descriptor)


def own_file(path: Path) -> int:
    """A descriptor of the file, for reading; its caller closes it.

    Raises: OSError: it cannot be opened, is a link, or others may write it.
    """
    return _opened(path, 0)


def through(descriptor: int, path: Path) -> Path:
    """A path to what is open there; the path itself on a system that has none."""
    link = Path(f"/proc/self/fd/{descriptor}")
    return link if link.exists() else path


def _opened(path: Path, kind: int) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | kind)
    found = os.fstat(descriptor)
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & BY_OTHERS:
        os.close(descriptor)
        raise PermissionError(f"expected {path} to be writable by its owner alone, found it is not")
    return descriptor
