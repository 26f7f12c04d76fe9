"""What no Python here runs: the library for other machines, compiled, and run where it can be."""

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.native.build import ARM, FLAGS, SOURCE

ROWS = Path(__file__).with_name("rows.c")
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
TIMEOUT_S = 240  # a few seconds of an idle core
pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)
needs_cross_compiler = pytest.mark.skipif(
    shutil.which(CROSS) is None, reason=f"no compiler for arm64 here ({CROSS})"
)


def compiled(compiler: str, source: Path, made: Path, flags: tuple[str, ...]) -> Path:
    command = [compiler, "-std=gnu11", "-ffp-contract=off", "-Wall", "-Werror", *flags]
    command += [str(source), "-o", str(made), "-lm", "-pthread"]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return made


def said_by(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@needs_cross_compiler
@pytest.mark.parametrize("level", ARM)
def test_the_library_compiles_for_arm64(tmp_path: Path, level: str) -> None:
    flags = ("-O1", *FLAGS[1:], *ARM[level])  # whether it does, in a third of the time
    made = compiled(CROSS, SOURCE, tmp_path / "decoder.so", flags)
    assert made.stat().st_size


@needs_cross_compiler
@pytest.mark.skipif(shutil.which(EMULATOR) is None, reason=f"no emulator here ({EMULATOR})")
@pytest.mark.parametrize("level", ARM)
def test_any_number_of_rows_gives_the_same_bits_on_arm64(tmp_path: Path, level: str) -> None:
    made = compiled(CROSS, ROWS, tmp_path / "rows", ("-O1", "-static", *ARM[level]))
    assert said_by([EMULATOR, "-cpu", "max", str(made)]) == "the same bits\n"


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_the_program_that_is_run_there_says_the_same_here(tmp_path: Path) -> None:
    made = compiled("cc", ROWS, tmp_path / "rows", ("-O1",))
    assert said_by([str(made)]) == "the same bits\n"
