"""The files of results: checked before the work begins, not when it is done.

A call is played in real time and a benchmark takes minutes: a folder that is not there or a disk
that may not be written is told first. What fails all the same while it is written is told as one
sentence.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clients.errors import OutputError


def prepare_folder(path: Path) -> None:
    """Make the folder, and try to write into it.

    Raises:
        OutputError: something else is there, or it may not be made or written into.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):  # permissions alone do not tell: root, a full disk
            pass
    except OSError as error:
        raise _not_writable("a folder that can be written into", path, error) from error


def check_file(path: Path) -> None:
    """See that the file can be written; leaves what is there, and nothing where nothing was.

    Raises:
        OutputError: its folder is missing, a folder is there, or it may not be written.
    """
    expected = "a file that can be written"
    if path.exists() and not path.is_file() and not path.is_dir():
        return  # a device or a pipe, whose reader would see it opened and closed
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise _not_writable(expected, path, error) from error


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around the writing of ``path``.

    Raises:
        OutputError: it fails (no room, no right, gone by now).
    """
    try:
        yield
    except BrokenPipeError:
        raise  # of a pipe that is no longer read: no fault of the place
    except OSError as error:
        raise _not_writable("to write", path, error) from error


def _not_writable(expected: str, path: Path, error: OSError) -> OutputError:
    found = "a file" if isinstance(error, FileExistsError) else (error.strerror or str(error))
    return OutputError(f"expected {expected} at {path}, found: {found}")
