"""Owns the library of `decoder.c`: which one fits this CPU, where it lies, how it is compiled.

It is compiled once for a set of instructions and kept in the user's cache, under a name that holds
the digest of source and flags. `python -m engine.native.build` does so ahead of the first start;
with `--wheel` for every set, into the folder `built` beside the source, which a wheel carries: of
this machine, and of the other where a cross compiler for it is here.
"""

import argparse
import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from ..own_files import cache_folder, own_file, own_folder, through
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
    "avxvnni": ("-mavx2", "-mfma", "-mavxvnni"),
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
# The compilers of Debian and its kin for machines other than this one.
CROSS = {"x86_64": "x86_64-linux-gnu-gcc", "aarch64": "aarch64-linux-gnu-gcc"}


# Of the embedded agent, int8 beside wide numbers, one core: 1.6 and 10.3 ms (benchmarks/LOG.md).
COST_OF_TORCH = "without the library a token takes some six times as long"


class NotBuilt(Exception):
    """The error that there is no library for this machine; the message says why."""


def levels() -> Mapping[str, tuple[str, ...]]:
    """The instruction sets that a library may use on this kind of machine, with their flags."""
    return LEVELS.get(platform.machine(), {})


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
    path = SHIPPED / _file_name(level)
    try:
        if not path.is_file():
            path = _kept(level)
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NotBuilt(f"expected a library in {path}, found: {error}") from None
    declare(loaded, level)
    return loaded


def _kept(level: str) -> Path:
    """The library in the user's cache, by a descriptor of it. Raises: NotBuilt, OSError.

    The descriptor stays open: the loader knows a library by its path, and the next one of that
    number would pass for it.
    """
    name, kept = _file_name(level), cache_folder("native")
    with own_folder(kept) as folder:
        whole = _whole(folder / name)
        if whole is None:
            compile_level(level, kept)
            whole = _whole(folder / name)
    if whole is None:
        raise NotBuilt(f"expected a library in {kept}, found another than was compiled")
    return through(whole, kept / name)


def compile_level(level: str, folder: Path, compiler: Sequence[str] = ()) -> Path:
    """Compile for one instruction set; nobody ever sees a half-written file. compiler: of the
    machine that has it, by itself $CC or cc. Raises: NotBuilt.
    """
    compiler = compiler or shlex.split(os.environ.get("CC") or "cc")
    if not compiler or shutil.which(compiler[0]) is None:
        raise NotBuilt(f"expected a C compiler (cc, or $CC), found no {' '.join(compiler)}")
    name = _file_name(level)
    try:
        # Named from within: on the way to a folder of another's, names may change.
        with own_folder(folder) as own, tempfile.TemporaryDirectory(dir=own) as scratch:
            made = Path(scratch) / name
            command = [*compiler, *_flags(level), str(SOURCE), "-o", name, "-lm", "-pthread"]
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_S, cwd=scratch
            )
            if ran.returncode:
                said = (ran.stderr.strip() or "nothing was said").splitlines()[0]
                raise NotBuilt(f"expected {compiler[0]} to compile {SOURCE}, found: {said}")
            digest = made.with_suffix(DIGEST)
            digest.write_text(hashlib.sha256(made.read_bytes()).hexdigest())
            made.replace(own / name)
            digest.replace((own / name).with_suffix(DIGEST))
    except (OSError, subprocess.SubprocessError) as error:
        raise NotBuilt(f"expected to compile into {folder}, found: {error}") from None
    return folder / name


def _whole(path: Path) -> int | None:
    """A descriptor of what was compiled, for loading a torn library ends the process.

    Raises: OSError: others may write it.
    """
    try:
        told = path.with_suffix(DIGEST).read_text()
        descriptor = own_file(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    with os.fdopen(os.dup(descriptor), "rb") as file:
        is_whole = hashlib.file_digest(file, "sha256").hexdigest() == told
    if not is_whole:
        os.close(descriptor)
    return descriptor if is_whole else None


def _flags(level: str) -> tuple[str, ...]:
    return (*FLAGS, *next((sets[level] for sets in LEVELS.values() if level in sets), ()))


def _file_name(level: str) -> str:
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(_flags(level)).encode())
    return f"decoder-{level}-{digest.hexdigest()[:16]}.so"


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile ahead, and say what a start will find."""
    parser = argparse.ArgumentParser(prog="python -m engine.native.build", description=__doc__)
    parser.add_argument("--wheel", action="store_true", help="every instruction set, for a wheel")
    is_for_wheel = parser.parse_args(arguments).wheel
    try:
        if is_for_wheel:
            for level in levels():
                print(compile_level(level, SHIPPED))
            for machine, compiler in CROSS.items():
                if LEVELS[machine] != levels() and shutil.which(compiler) is not None:
                    for level in LEVELS[machine]:
                        print(compile_level(level, SHIPPED, (compiler,)))
        else:
            print(f"the engine's layers will be run by its C library ({library().level})")
    except NotBuilt as reason:
        print(f"the engine's layers will be run by torch: {reason}; {COST_OF_TORCH}")
        return int(is_for_wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
