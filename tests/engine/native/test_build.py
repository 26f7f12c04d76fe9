"""Where the library comes from: compiled once, kept, refused where others may write it."""

import shutil
import threading
import tomllib
from pathlib import Path
from unittest.mock import Mock

import pytest

import engine.native.build as build
from engine.device import open_device
from engine.native.build import NotBuilt, compile_level, open_level
from engine.native.layout import declare
from engine.types import EngineConfig
from tests.release import ROOT, platform_tag

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


@needs_compiler
def test_a_library_is_compiled_once_and_found_again(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_level("plain").native_runs_here()
    monkeypatch.setenv("CC", "false")  # it is not asked again
    assert open_level("plain").native_runs_here()
    suffixes = {path.suffix for path in (built / "voiceloop" / "native").iterdir()}
    assert suffixes == {".so", ".sha256"}  # and nothing half-made


@needs_compiler
def test_two_who_compile_at_once_both_get_a_whole_library(built: Path) -> None:
    made: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(compile_level("plain", build.cache_folder("native")))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2 and made[0] == made[1]
    assert open_level("plain").native_runs_here()


@pytest.mark.parametrize(
    ("compiler", "found"),
    [("no-such-compiler", "found no no-such-compiler"), ("false", "nothing was said")],
)
def test_without_a_compiler_torch_serves_and_says_why(
    built: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, found: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(build, "LEVELS", dict.fromkeys(build.LEVELS, build.X86))
    with pytest.raises(NotBuilt, match=found):
        build.library.__wrapped__()
    monkeypatch.setattr("engine.device.native_library", build.library.__wrapped__)
    device = open_device(EngineConfig(quant="int8"))
    assert found in device.lacks and "times as long" in device.lacks


@needs_compiler
def test_what_the_compiler_does_not_know_keeps_nobody_from_an_older_level(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = {"newest": ("-mno-such-instructions",), "older": ()}
    monkeypatch.setattr(build, "LEVELS", dict.fromkeys(build.LEVELS, levels))
    assert build.library.__wrapped__().level == "older"


def test_of_a_library_that_does_not_run_here_nothing_is_called() -> None:
    asked = Mock()
    asked.native_runs_here.return_value = 0
    declare(asked, "newest")
    asked.native_sizes.assert_not_called()


@pytest.mark.parametrize("config", [EngineConfig(native=False), EngineConfig(dtype="fp32")])
def test_where_it_is_not_wanted_it_is_not_looked_for(
    monkeypatch: pytest.MonkeyPatch, config: EngineConfig
) -> None:
    def fail() -> None:
        raise AssertionError("expected nobody to ask for the library")

    monkeypatch.setattr("engine.device.native_library", fail)
    assert not open_device(config).lacks


@needs_compiler
def test_a_library_that_others_may_write_is_not_loaded(filled: Path) -> None:
    path = compile_level("plain", build.cache_folder("native"))
    path.chmod(0o777)
    with pytest.raises(NotBuilt, match="by its owner alone"):
        open_level("plain")
    path.chmod(0o755)
    path.parent.chmod(0o777)
    with pytest.raises(NotBuilt, match="by its owner alone"):
        open_level("plain")


@needs_compiler
@pytest.mark.parametrize("n_bytes", [0, 1000])
def test_a_torn_file_is_compiled_anew(filled: Path, n_bytes: int) -> None:
    path = compile_level("plain", build.cache_folder("native"))
    path.write_bytes(path.read_bytes()[:n_bytes])
    assert open_level("plain").native_runs_here()


@needs_compiler
def test_the_command_compiles_ahead_and_says_what_a_start_will_find(
    built: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "LEVELS", {machine: {"plain": ()} for machine in build.LEVELS})
    monkeypatch.setattr(build, "library", build.library.__wrapped__)
    assert build.main([]) == 0
    assert "by its C library (plain)" in capsys.readouterr().out
    monkeypatch.setattr(build, "SHIPPED", built / "wheel")
    assert build.main(["--wheel"]) == 0
    assert len(list((built / "wheel").glob("*.so"))) == 1
    monkeypatch.setenv("PATH", "")  # what a wheel carries needs no compiler
    monkeypatch.delenv("CC", raising=False)
    shutil.rmtree(built / "voiceloop")
    assert open_level("plain").native_runs_here()
    assert build.main(["--wheel"]) == 1


@needs_compiler
def test_what_is_checked_is_what_is_loaded_whatever_its_path_comes_to_mean(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compile_level("plain", build.cache_folder("native")).parent
    real_whole = build._whole

    def swapped(path: Path) -> int | None:
        checked = real_whole(path)
        folder.rename(folder.with_name("moved"))  # who owns a folder above it may, at any moment
        folder.mkdir()
        (folder / path.name).write_bytes(b"code of another")
        return checked

    monkeypatch.setattr(build, "_whole", swapped)
    assert open_level("plain").native_runs_here()


def test_a_wheel_carries_what_was_compiled_and_its_name_says_for_which_machines() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert f"{build.SHIPPED.relative_to(ROOT)}/*" in wheel["artifacts"]
    arm, x86 = (machine.to_bytes(2, "little") for machine in (183, 62))
    libraries = [bytes(18) + x86 + b"GLIBC_2.2.5 GLIBC_2.34", bytes(18) + arm + b"GLIBC_2.17"]
    assert platform_tag(libraries) == "manylinux_2_34_aarch64.manylinux_2_34_x86_64"
    assert platform_tag(libraries[1:]) == "manylinux_2_17_aarch64"
