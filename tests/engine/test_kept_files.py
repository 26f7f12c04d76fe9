"""What is kept in the user's cache leaves the disk room; a digest is that of the file's bytes."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from engine import kept_files
from engine.kept_files import SUFFIX, KeptFiles, digest


@pytest.mark.parametrize("times_free", [1.9, 2.1])
def test_no_more_is_kept_than_half_of_what_the_disk_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times_free: float
) -> None:
    tensors = {"codes": torch.zeros(1000, dtype=torch.uint8)}
    left = SimpleNamespace(free=int(1000 * times_free))
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: left)
    KeptFiles(tmp_path, 1 << 20).keep(f"some{SUFFIX}", tensors, {})
    assert len(list(tmp_path.iterdir())) == (times_free > 2)


def test_a_large_file_is_read_once_and_again_when_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_files, "LARGE_BYTES", 1)
    path = tmp_path / "weights"
    found = []
    for text, at_ns in (("one", 1), ("two", 1), ("two", 2)):
        path.write_text(text)
        os.utime(path, ns=(at_ns, at_ns))
        found.append(digest([path]))
    assert found[0] == found[1] != found[2]


def test_a_huge_file_is_read_once_on_a_machine_until_anybody_writes_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_files, "LARGE_BYTES", 1)
    monkeypatch.setattr(kept_files, "HUGE_BYTES", 1)
    read, path, found = list[Path](), tmp_path / "weights", list[str]()
    content = kept_files._content

    def noted(path: Path, n_bytes: int, changed_ns: int) -> bytes:
        read.append(path)
        return content(path, n_bytes, changed_ns)

    monkeypatch.setattr(kept_files, "_content", noted)
    for text in ("one", "one", "two"):
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            os.utime(path, ns=(1, 1))  # its own time says nothing
        kept_files._content_of_large.cache_clear()  # as another start
        found.append(digest([path]))
    assert found[0] == found[1] != found[2] and len(read) == 2
