"""Owns the library of `decoder.c`: which one fits this CPU, where it lies, how it is compiled.

It is compiled once for a set of instructions and kept in the user's cache, under a name that holds
the digest of source and flags. `python -m engine.native.build` does so ahead of the first start;
with `--wheel` for every set, into the folder `built` beside the source, which a wheel carries.
"""

import argparse
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from .layout import declare

SOURCE = Path(__file__).with_name("decoder.c")
SHIPPED = Path(__file__).with_name("built")
DIGEST = ".sha256"  # suffix of the file beside a library that has its digest
COMPILE_S = 240.0  # about 4 s of an idle core, many times that beside other work
FLAGS = ("-O3", "-std=gnu11", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-s")
X86 = {
    "avx512": tuple(
        f"-m{name}" for name in "avx2 fma avx512f avx512bw avx512dq avx512vl avx512vnni".split()
    ),
    "avx2": ("-mavx2", "-mfma"),
}
ARM = {"dotprod": ("-march=armv8.2-a+dotprod",)}
# Instruction sets by machine, the fastest first. Plain C comes last, and only where it is asked
# for: torch's own products are faster.
LEVELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "x86_64": X86,
    "AMD64": X86,
    "aarch64": ARM,
    "arm64": ARM,
}
PLAIN = "plain"


# Of int8 on one core: the embedded agent and a model of 28M parameters (benchmarks/LOG.md).
COST_OF_TORCH = "without the library a token takes two to four times as long"


class NotBuilt(Exception):
    """There is no library for this machine; the message says why."""


def levels() -> Mapping[str, tuple[str, ...]]:
    """The instruction sets that a library may use on this kind of machine, with their flags."""
    return LEVELS.get(platform.machine(), {})


def cache_folder() -> Path:
    """The folder where libraries are kept: `$XDG_CACHE_HOME/voiceloop/native`."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "voiceloop" / "native"


@cache
def library() -> ctypes.CDLL:
    """The fastest library that can be had and runs here, compiled now if it has to be.

    A compiler that knows no newer instructions keeps nobody from the older. Raises: NotBuilt.
    """
    if not levels():
        raise NotBuilt(f"expected one of the machines {', '.join(LEVELS)}, found another")
    reason = NotBuilt(f"expected a CPU with one of {', '.join(levels())}, found none of them")
    for level in levels():
        try:
            loaded = open_level(level)
        except NotBuilt as found:
            reason = found
            continue
        if loaded.native_runs_here():
            return loaded
    raise reason


def open_level(level: str) -> ctypes.CDLL:
    """The library of one instruction set, whether the CPU has it or not. Raises: NotBuilt."""
    name = _file_name(level)
    path = SHIPPED / name
    if not path.is_file():
        path = cache_folder() / name
        if not _is_whole(path):
            compile_level(level, path.parent)
        _check_owner(path.parent)
        _check_owner(path)
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NotBuilt(f"expected a library in {path}, found: {error}") from None
    declare(loaded, level)
    return loaded


def compile_level(level: str, folder: Path) -> Path:
    """Compile for one instruction set; nobody ever sees a half-written file. Raises: NotBuilt."""
    compiler = shlex.split(os.environ.get("CC") or "cc")
    if not compiler or shutil.which(compiler[0]) is None:
        raise NotBuilt(f"expected a C compiler (cc, or $CC), found no {' '.join(compiler)}")
    path = folder / _file_name(level)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / path.name
            command = [*compiler, *_flags(level), str(SOURCE), "-o", str(made), "-lm", "-pthread"]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_S)
            if ran.returncode:
                said = (ran.stderr.strip() or "nothing was said").splitlines()[0]
                raise NotBuilt(f"expected {compiler[0]} to compile {SOURCE}, found: {said}")
            digest = made.with_suffix(DIGEST)
            digest.write_text(_digest(made))
            made.replace(path)
            digest.replace(path.with_suffix(DIGEST))
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"expected to compile into {folder}, found: {error}") from None
    return path


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(path: Path) -> bool:
    """Whether it is what was compiled: loading a torn library ends the process."""
    try:
        return path.with_suffix(DIGEST).read_text() == _digest(path)
    except (OSError, UnicodeDecodeError):
        return False


def _flags(level: str) -> tuple[str, ...]:
    return (*FLAGS, *levels().get(level, ()))


def _file_name(level: str) -> str:
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(_flags(level)).encode())
    return f"decoder-{level}-{digest.hexdigest()[:16]}.so"


def _check_owner(path: Path) -> None:
    """Code from a place where others may write is not run. Raises: NotBuilt."""
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise NotBuilt(f"expected {path} to be writable by its owner alone, found others may too")


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile ahead, and say what a start will find."""
    parser = argparse.ArgumentParser(prog="python -m engine.native.build", description=__doc__)
    parser.add_argument("--wheel", action="store_true", help="every instruction set, for a wheel")
    is_for_wheel = parser.parse_args(arguments).wheel
    try:
        if is_for_wheel:
            for level in levels():
                print(compile_level(level, SHIPPED))
        else:
            print(f"the engine's layers will be run by its C library ({library().level})")
    except NotBuilt as reason:
        print(f"the engine's layers will be run by torch: {reason}; {COST_OF_TORCH}")
        return int(is_for_wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
