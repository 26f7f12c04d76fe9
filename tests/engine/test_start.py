"""A start that does not fail: what a device's kernels raise, and what serves in their place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="the GPU path needs triton")

from engine.engine import Engine
from engine.graphs.graph_runner import GraphRunner
from engine.kernels.decoder import KernelSet
from engine.load.description import describe, served_by
from engine.runner import Runner
from engine.types import CheckpointError, DeviceError, Done, EngineConfig, SamplingParams


class OutOfResources(Exception):
    """As Triton's: none of the engine's errors."""


FAULTS = {
    "load": (KernelSet, "make_linear", OutOfResources("out of resource: shared memory\nmore")),
    "capture": (GraphRunner, "_capture", RuntimeError("CUDA error: invalid argument")),
    "memory": (GraphRunner, "_on_host", torch.OutOfMemoryError("CUDA out of memory")),
}


def config(device: str = "reference", **changes: Any) -> EngineConfig:
    settings: dict[str, Any] = {"dtype": "fp32", "kv_tokens": 512, "ngram_draft": True, **changes}
    return EngineConfig(device=device, **settings)


def fail(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, error: Exception) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(owner, name, failing)


def said(engine: Engine) -> list[int]:
    branch = engine.branch("b")
    branch.commit([5, 6, 7, 8], SamplingParams(max_tokens=12, ignore_eos=True))
    while engine.has_work():
        assert not [e for e in engine.step() if isinstance(e, Done) and e.error]
    return branch.sequence.tokens[4:]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("quant", [None, "int8", "int4"])
def test_where_the_kernels_fail_torch_serves_and_the_start_says_why(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fault: str, quant: str | None
) -> None:
    fail(monkeypatch, *FAULTS[fault])
    engine = Engine.start(tiny_model, config(quant=quant))
    assert type(engine.runner) is Runner
    assert said(engine) == said(Engine.load(tiny_model, config("cpu")))
    told = str(FAULTS[fault][2]).splitlines()[0]
    assert f"layers by torch (its kernels failed: {type(FAULTS[fault][2]).__name__}: {told}; " in (
        describe(engine)
    )
    assert served_by(engine)["layers"] == "torch"


def test_where_torch_fails_too_one_sentence_has_both(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, *FAULTS["load"])
    fail(monkeypatch, Runner, "__init__", RuntimeError("no device"))
    with pytest.raises(DeviceError, match="found OutOfResources: .*memory; then RuntimeError: no"):
        Engine.start(tiny_model, config())
    with pytest.raises(DeviceError, match="expected cpu to run the model, found RuntimeError"):
        Engine.start(tiny_model, config("cpu"))


def test_what_is_wrong_with_the_checkpoint_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Engine.start(tmp_path, config())


def test_formats_of_a_checkpoint_are_read_without_kernels(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    plain = Engine.load(folder, config(kernels=False, quant="int8", kv_format="int8"))
    assert plain.runner.layers == "torch" and len(said(plain)) == 12
