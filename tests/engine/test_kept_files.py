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
