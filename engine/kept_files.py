"""Owns files of tensors in the user's cache: written whole or not at all, bounded, read by their
owner alone.

A file is written beside its place and moved there, so that whoever reads sees all of it or nothing;
the longest unused make room. What a name stands for is for whoever keeps the files.
"""

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .load.gguf_file import files_of
from .own_files import cache_folder, own_file, own_folder, through

log = logging.getLogger(__name__)

SUFFIX, PART = ".safetensors", ".part"
DTYPES = {torch.uint8: "U8", torch.bfloat16: "BF16", torch.float32: "F32"}  # as files call them
# Of a file that is being written: older ones are of a process that was killed.
PART_KEPT_S = 600.0
LARGE_BYTES = 1 << 20  # of a file: its digest is kept as long as its size and time stay
# Across starts that of a larger one: to read it takes a second for each gigabyte, and the disk's
# time where nobody has read it since the machine started.
HUGE_BYTES = 64 << 20
DIGESTS, DIGESTS_BYTES = "digests", 64 << 10  # some 300
WEIGHTS = {".safetensors", ".gguf", ".json", ".jinja"}
CODE = Path(__file__).parent  # the engine: another version of it may compute other numbers


def code_files(*of: str) -> list[Path]:
    """Every file of the engine that what it computes may depend on; its recipes make models.

    of: files and folders of it, where the others have no say.
    """
    found = [path for path in CODE.rglob("*.[cp]*") if path.suffix in (".py", ".c")]
    parts = {path: path.relative_to(CODE).parts for path in found}
    return sorted(p for p in found if "recipes" not in parts[p] and (not of or parts[p][0] in of))


def model_files(model: Path) -> list[Path]:
    """The files that a model, or an adapter, is read from."""
    if model.is_file():
        return files_of(model)
    return sorted(path for path in model.iterdir() if path.suffix in WEIGHTS and path.is_file())


def digest(paths: Iterable[Path]) -> str:
    """Return the digest of names and contents; reads them all, huge ones once on this machine."""
    found = hashlib.sha256()
    for path in paths:
        at = path.stat()
        content = _content if at.st_size < LARGE_BYTES else _content_of_large
        found.update(path.name.encode() + b"\0" + content(path, at.st_size, at.st_mtime_ns))
    return found.hexdigest()


def _content(path: Path, n_bytes: int, changed_ns: int) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


@lru_cache(maxsize=256)
def _content_of_large(path: Path, n_bytes: int, changed_ns: int) -> bytes:
    if n_bytes < HUGE_BYTES:
        return _content(path, n_bytes, changed_ns)
    at = path.stat()
    facts = at.st_dev, at.st_ino, n_bytes, changed_ns, at.st_ctime_ns
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:40] + SUFFIX
    files = KeptFiles(cache_folder(DIGESTS), DIGESTS_BYTES)
    try:
        with files.opened(name) as known, safe_open(known, "pt") as file:
            return bytes(file.get_tensor(DIGESTS).tolist())
    except (OSError, SafetensorError):
        found = _content(path, n_bytes, changed_ns)
    files.keep(name, {DIGESTS: torch.tensor(list(found), dtype=torch.uint8)}, {})
    return found


class KeptFiles:
    """A folder that processes of one user share, within a number of bytes."""

    def __init__(self, folder: Path, n_most_bytes: int) -> None:
        self.folder, self.n_most_bytes = folder, n_most_bytes

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        """A path to one file, which then counts as used now. Raises: OSError."""
        path = self.folder / name
        descriptor = own_file(path)
        try:
            yield through(descriptor, path)
            os.utime(descriptor)
        finally:
            os.close(descriptor)

    def keep(self, name: str, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Keep tensors under this name, where the disk has twice the room; others make room."""
        n_bytes = sum(tensor.nbytes for tensor in tensors.values())
        try:
            with own_folder(self.folder) as folder:
                if n_bytes <= min(self.n_most_bytes, shutil.disk_usage(folder).free // 2):
                    self._write(folder, name, tensors, metadata)
        except OSError as error:
            log.warning("nothing more is kept in %s: %s", self.folder, error)

    def _write(
        self, folder: Path, name: str, tensors: dict[str, Tensor], metadata: Mapping[str, str]
    ) -> None:
        """Raises: OSError."""
        self._make_room(folder)  # of what a process that was killed has left
        part = folder / f".{name.removesuffix(SUFFIX)}-{os.getpid()}{PART}"
        try:
            part.touch(mode=0o600)
            _write(part, tensors, metadata)
            _sync(part)  # before its name: a name without its bytes would be a torn file
            part.replace(folder / name)
        finally:
            part.unlink(missing_ok=True)  # where it has no other name
        _sync(folder)
        self._make_room(folder)

    def _make_room(self, folder: Path) -> None:
        """Remove what is beyond the bytes, the longest unused first, and what was left behind."""
        now, n_bytes = time.time(), 0
        for used_at, _, part in _files_in(folder, f".*{PART}"):
            if now - used_at > PART_KEPT_S:
                part.unlink(missing_ok=True)
        for _, size, path in sorted(_files_in(folder, f"*{SUFFIX}"), reverse=True):
            n_bytes += size
            if n_bytes > self.n_most_bytes:
                path.unlink(missing_ok=True)


def _write(path: Path, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
    """A safetensors file, a tensor at a time: the package's own writer holds all of them twice.

    Raises: OSError.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape),
            "data_offsets": [place, place + tensor.nbytes],
        }  # fmt: skip
        place += tensor.nbytes
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % 8)
    with path.open("wb") as file:
        file.write(len(told).to_bytes(8, "little") + told)
        for tensor in tensors.values():
            flat = tensor.detach().cpu().contiguous().flatten()
            file.write(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _files_in(folder: Path, pattern: str) -> Iterator[tuple[float, int, Path]]:
    """Yield of each file when it was used last and its bytes; none that is removed meanwhile."""
    for path in folder.glob(pattern):
        with suppress(OSError):
            found = path.stat()
            yield found.st_mtime, found.st_size, path
