"""Owns files of tensors in the user's cache: written whole or not at all, bounded, read by their
owner alone.

A file is written beside its place and moved there, so that whoever reads sees all of it or nothing;
the longest unused make room. What a name stands for is for whoever keeps the files.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from .load.gguf_file import files_of
from .own_files import own_file, own_folder, through

SUFFIX, PART = ".safetensors", ".part"
DTYPES = {torch.uint8: "U8", torch.bfloat16: "BF16", torch.float32: "F32"}  # as files call them
# Of a file that is being written: older ones are of a process that was killed.
PART_KEPT_S = 600.0
WEIGHTS = {".safetensors", ".gguf", ".json", ".jinja"}
CODE = Path(__file__).parent  # the engine: another version of it may compute other numbers


def cache_folder(name: str) -> Path:
    """`$XDG_CACHE_HOME/voiceloop/NAME`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "voiceloop" / name


def code_files() -> list[Path]:
    """Every file of the engine that what it computes may depend on; its recipes make models."""
    found = [path for path in CODE.rglob("*.[cp]*") if path.suffix in (".py", ".c")]
    return sorted(path for path in found if "recipes" not in path.relative_to(CODE).parts)


def model_files(model: Path) -> list[Path]:
    """The files that a model, or an adapter, is read from."""
    if model.is_file():
        return files_of(model)
    return sorted(path for path in model.iterdir() if path.suffix in WEIGHTS and path.is_file())


def digest(paths: Iterable[Path]) -> str:
    """Return the digest of names and contents; reads them all."""
    found = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            found.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return found.hexdigest()


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

    def write(self, name: str, tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Keep tensors under this name; others make room. Raises: OSError."""
        with own_folder(self.folder) as folder:
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
        now = time.time()
        for part in folder.glob(f".*{PART}"):
            if now - _used_at(part) > PART_KEPT_S:
                part.unlink(missing_ok=True)
        n_bytes = 0
        for path in sorted(folder.glob(f"*{SUFFIX}"), key=_used_at, reverse=True):
            n_bytes += _size(path)
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


def _used_at(path: Path) -> float:
    """0 where another process has removed it meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
