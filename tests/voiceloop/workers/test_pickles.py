"""A file of torch's that a package reads in a worker holds tensors, or is refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from voiceloop.workers.process_setup import refuse_pickles

torch = pytest.importorskip("torch")


class Runs:
    """What a pickle may do to who reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_file_of_weights_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "0")
    bad, good, made = tmp_path / "bad.pth", tmp_path / "good.pth", tmp_path / "made"
    torch.save({"w": torch.zeros(2), "x": Runs(made)}, bad)
    torch.save({"w": torch.ones(2)}, good)
    torch.load(bad, weights_only=False)
    assert made.is_dir()  # so it is as bad as that
    made.rmdir()
    refuse_pickles()
    with pytest.raises(pickle.UnpicklingError):
        torch.load(bad)
    assert not made.exists()
    assert torch.load(good)["w"].tolist() == [1.0, 1.0]
