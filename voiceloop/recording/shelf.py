"""The folder of kept calls: their names, who may delete them, and for how long they lie there.

Owns the files: a call that is being written is ``ID~TENANT.flac.part`` and ``.json.part``, locked
by its process; one that is over has neither ending. What a killed process left is closed, what is
older than `keep_days` is deleted. Files are read and written by their owner alone (0600).
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from voiceloop.errors import ConfigError, MissingExtra
from voiceloop.recording import notes

log = logging.getLogger(__name__)

PART, AGE = ".part", ".age"
SOUNDS = (".flac", ".opus")
ENDINGS = tuple(f"{kind}{ending}" for kind in (".json", *SOUNDS) for ending in ("", PART, AGE))
MODE = 0o600
DAY_S = 86_400.0
CALL_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
KEPT = re.compile(rf"[\w-]+~[\w-]*({'|'.join(re.escape(end) for end in ENDINGS)})")

Seal = Callable[[bytes], bytes]


def sealing(recipient: str) -> Seal | None:
    """Return what encrypts for this age key; None where there is none. Raises: MissingExtra,
    ConfigError.

    Source: age-encryption.org/v1, by pyrage.
    """
    if not recipient:
        return None
    try:
        import pyrage
    except ImportError as error:
        raise MissingExtra(
            "recording.age_key: expected the package pyrage, found none: "
            "pip install 'voiceloop[recording]'"
        ) from error
    try:
        key = pyrage.x25519.Recipient.from_str(recipient)
    except pyrage.RecipientError:
        raise ConfigError(
            "recording.age_key: expected a public key as age1..., found another text"
        ) from None

    def seal(data: bytes) -> bytes:
        sealed: bytes = pyrage.encrypt(data, [key])
        return sealed

    return seal


class Shelf:
    """One folder. keep_days: 0 for ever; seal: encrypts what is over. Raises: ConfigError."""

    def __init__(self, folder: Path, keep_days: float, seal: Seal | None) -> None:
        self._folder = folder
        self._keep_s = keep_days * DAY_S
        self._seal = seal
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            told = f"expected a folder, or a place for one, found {folder} ({error.strerror})"
            raise ConfigError(f"recording.folder: {told}") from None
        if not os.access(folder, os.W_OK | os.X_OK):
            raise ConfigError(f"recording.folder: expected to write in {folder}, found I may not")

    def path(self, call_id: str, tenant: str, ending: str) -> Path:
        return self._folder / f"{call_id}~{tenant}{ending}"

    def open_part(self, call_id: str, tenant: str, ending: str) -> IO[bytes]:
        """A new file, which this process alone writes. Raises: OSError."""
        path = self.path(call_id, tenant, ending + PART)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
        file = os.fdopen(descriptor, "w+b", buffering=0)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return file

    def close(self, path: Path) -> Path:
        """A part that is whole gets its name, sealed where that is asked. Raises: OSError."""
        whole = path.with_name(path.name.removesuffix(PART))
        if self._seal is None:
            path.rename(whole)
            return whole
        sealed = whole.with_name(whole.name + AGE)
        self._write(sealed, self._seal(path.read_bytes()))
        path.unlink()
        return sealed

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)

    def delete(self, call_id: str, tenant: str) -> bool:
        """All files of this call of this tenant's. Whether there were any."""
        if not CALL_ID.fullmatch(call_id):
            return False
        found = [self.path(call_id, tenant, ending) for ending in ENDINGS]
        there = [path for path in found if path.exists()]
        for path in there:
            path.unlink(missing_ok=True)
        return bool(there)

    def sweep(self, now_s: float | None = None) -> int:
        """Delete what was kept for long enough; returns how many files."""
        if not self._keep_s:
            return 0
        before_s = (time.time() if now_s is None else now_s) - self._keep_s
        old = [path for path in self._kept() if path.stat().st_mtime < before_s]
        for path in old:
            path.unlink(missing_ok=True)
        return len(old)

    def recover(self) -> int:
        """Close what a process that is gone has left; returns how many files."""
        n_closed = 0
        for path in self._kept():
            if not path.name.endswith(PART):
                continue
            with _unlocked(path) as file:
                if file is None:
                    continue
                if path.name.endswith(".opus" + PART):
                    path.unlink()  # what it was made of is still there
                    continue
                if path.name.endswith(".json" + PART):
                    path.write_bytes(notes.closed(file.read()))
                self.close(path)
                n_closed += 1
        if n_closed:
            log.warning("recordings that a process left open were closed: %d", n_closed)
        return n_closed

    def _kept(self) -> Iterator[Path]:
        """Files of calls; nothing else that may lie in the folder."""
        with os.scandir(self._folder) as found:
            names = [one.name for one in found if KEPT.fullmatch(one.name)]
        return (self._folder / name for name in names)


@contextmanager
def _unlocked(path: Path) -> Iterator[IO[bytes] | None]:
    """The file, locked; None where a process writes it."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield file
