"""Packed weights on disk are the model's: the same logits, and anew where they are not whole."""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.device as device
import engine.kept_files as kept_files
import engine.native.packed_file as packed_file
from engine.engine import Engine
from engine.load.gguf import GgufCheckpoint
from engine.native.build import NotBuilt, library
from engine.native.packed_file import PackedWeights
from engine.quality import log_probabilities
from engine.types import EngineConfig
from tests.engine.conftest import WriteCheckpoint
from tests.engine.load.gguf_files import write_gguf

TOKENS = [5, 40, 77, 300, 12, 9]
MakeConfig = Callable[..., EngineConfig]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where weights are kept, of models however small."""
    try:
        found = library()  # before its cache is another
    except NotBuilt as reason:
        pytest.skip(str(reason))
    monkeypatch.setattr(device, "native_library", lambda: found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packed_file, "LEAST_BYTES", 0)
    monkeypatch.setattr(packed_file, "in_background", lambda work: work())
    return tmp_path / "cache" / "voiceloop" / "weights"


def config(quant: str = "int8", n_bytes: int = 1 << 30) -> EngineConfig:
    return EngineConfig(quant=quant, kv_tokens=512, packed_file_bytes=n_bytes)


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("*.safetensors"))


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_a_second_start_reads_no_weights_but_the_packed_ones_and_says_the_same(
    folder: Path, write_checkpoint: WriteCheckpoint, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, quant: str,
) -> None:  # fmt: skip
    model = write_gguf(
        write_checkpoint(attention_bias=False, tie_word_embeddings=True), tmp_path / "m.gguf"
    )
    first = log_probabilities(Engine.load(model, config(quant)), TOKENS)
    [file] = kept(folder)
    assert file.stat().st_mode & 0o777 == 0o600
    read, tensor = list[str](), GgufCheckpoint.tensor

    def noted(
        self: GgufCheckpoint, name: str, shape: tuple[int, ...] | None = None
    ) -> torch.Tensor:
        read.append(name)
        return tensor(self, name, shape)

    monkeypatch.setattr(GgufCheckpoint, "tensor", noted)
    is_awaited, cat, settle = threading.Event(), torch.cat, PackedWeights.settle

    def late(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            is_awaited.wait(10.0)
            time.sleep(0.05)
        return cat(*args, **kwargs)

    def awaited(self: PackedWeights) -> None:
        is_awaited.set()
        settle(self)

    monkeypatch.setattr(torch, "cat", late)
    monkeypatch.setattr(PackedWeights, "settle", awaited)
    engine = Engine.load(model, config(quant))
    assert engine.runner.layers.startswith("native")
    assert all("norm" in name for name in read) and read
    assert torch.equal(log_probabilities(engine, TOKENS), first)


def test_code_that_packs_nothing_may_change_and_the_packed_weights_stay(
    folder: Path, write_checkpoint: WriteCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = tmp_path / "engine"
    shutil.copytree(kept_files.CODE, code, ignore=shutil.ignore_patterns("__pycache__", "recipes"))
    monkeypatch.setattr(kept_files, "CODE", code)
    assert all((code / part).exists() for part in packed_file.CODE)
    model = write_checkpoint()
    Engine.load(model, config())
    found = []
    for changed in ("scheduler.py", "text/text.py", "native/layout.py", "model.py"):
        text = (code / changed).read_text()
        (code / changed).write_text(text + "\n")
        packed = PackedWeights.of(model, config(), library())
        found.append(packed is not None and packed.is_here)
        (code / changed).write_text(text)
    assert found == [True, True, False, False]


@pytest.mark.parametrize("damage", ["torn", "other sizes", "no file"])
def test_what_is_not_whole_is_passed_over_and_the_weights_are_made_anew(
    folder: Path, write_checkpoint: WriteCheckpoint, damage: str
) -> None:
    model = write_checkpoint()
    first = log_probabilities(Engine.load(model, config()), TOKENS)
    [file] = kept(folder)
    whole = file.read_bytes()
    match damage:
        case "torn":
            file.write_bytes(whole[: len(whole) // 2])
        case "other sizes":
            file.write_bytes(whole.replace(b'\\"n_in\\": 32', b'\\"n_in\\": 64'))
        case "no file":
            file.unlink()
    assert torch.equal(log_probabilities(Engine.load(model, config()), TOKENS), first)


def test_another_format_or_another_model_has_a_file_of_its_own_within_the_bytes(
    folder: Path, write_checkpoint: WriteCheckpoint
) -> None:
    model = write_checkpoint()
    Engine.load(model, config())
    [file] = kept(folder)
    size = file.stat().st_size
    Engine.load(model, config("int4", n_bytes=size + size // 2))
    assert len(kept(folder)) == 1 and kept(folder) != [file]
    (model / "config.json").write_text((model / "config.json").read_text() + " ")
    other = packed_file.PackedWeights.of(model, config(), library())
    assert other is not None and not other.is_here
    assert packed_file.PackedWeights.of(model, config(n_bytes=0), library()) is None
