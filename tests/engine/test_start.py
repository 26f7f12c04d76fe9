"""What a device's kernels raise, at the start and in service, and plain torch in their place."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stepping import drain

pytest.importorskip("triton", reason="the GPU path needs triton")

from engine.engine import NAN_STORM, NAN_WITHIN_S, Engine
from engine.graphs.graph_runner import GraphRunner
from engine.kernels.decoder import KernelSet
from engine.runner import Runner
from engine.types import CheckpointError, DeviceFault, Done, EngineConfig, SamplingParams


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
def test_what_a_device_raises_at_the_start_has_a_type_a_kind_and_one_line(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    fail(monkeypatch, *FAULTS[fault])
    error = FAULTS[fault][2]
    told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    with pytest.raises(DeviceFault, match=f"^expected reference to run .*, found {told}$") as found:
        Engine.start(tiny_model, config())
    assert found.value.kind == ("memory" if fault == "memory" else "launch")


def test_what_a_device_raises_in_service_has_a_type_and_on_a_cpu_it_is_as_ever(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for device, owner, kind in (("reference", GraphRunner, DeviceFault), ("cpu", Runner, KeyError)):
        engine = Engine.start(tiny_model, config(device))
        fail(monkeypatch, owner, "step", KeyError("a bug"))
        with pytest.raises(kind):
            said(engine)


def test_reply_after_reply_of_nan_is_the_device_s_fault_and_one_now_and_then_is_not(
    tiny_model: Path,
) -> None:
    now = [0.0]
    engine = Engine.load(tiny_model, config(), clock=lambda: now[0])
    engine.runner.decoder.embedding.fill_(torch.nan)
    branch = engine.branch("b")

    def answer() -> None:
        branch.commit([5, 6, 7], SamplingParams(max_tokens=4))
        drain(engine)

    for _ in range(NAN_STORM + 2):
        now[0] += NAN_WITHIN_S
        answer()
    with pytest.raises(DeviceFault) as found:
        for _ in range(NAN_STORM):
            answer()
    assert found.value.kind == "nan"


def test_what_is_wrong_with_the_checkpoint_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        Engine.start(tmp_path, config())


def test_formats_of_a_checkpoint_are_read_without_kernels(
    write_checkpoint: Callable[..., Path],
) -> None:
    folder = write_checkpoint(tie_word_embeddings=True)
    plain = Engine.load(folder, config(kernels=False, quant="int8", kv_format="int8"))
    assert plain.runner.layers == "torch" and len(said(plain)) == 12
