"""Where an engine runs, and what is said of a device that is not there."""

import pytest
import torch

from engine.device import open_device
from engine.types import ConfigError, DeviceFault, EngineConfig

pytest.importorskip("triton", reason="the GPU path needs triton")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The GPUs that were made a thread's own, of a machine that says it has two."""
    found: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    return found


def test_kernels_are_interpreted_where_there_is_no_gpu_whichever_test_comes_first() -> None:
    from engine.kernels.launch import INTERPRETED

    assert INTERPRETED != torch.cuda.is_available()


def test_kernels_go_to_the_gpu_that_is_named(taken: list[int]) -> None:
    """Triton launches on the thread's GPU, wherever the tensors lie."""
    names = [open_device(EngineConfig(device=name)).torch_name for name in ("cuda", "cuda:1")]
    assert names == ["cuda", "cuda:1"] and taken == [0, 1]


def test_a_card_without_bf16_is_refused_the_kernels_by_name_and_runs_plain_torch(
    taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(DeviceFault, match="expected compute capability 8.0 .*, found 7.5"):
        open_device(EngineConfig(device="cuda"))
    assert open_device(EngineConfig(device="cuda", kernels=False)).torch_name == "cuda"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:x", "cuda:-1", "cuda:0:1"])
def test_a_gpu_that_is_not_there_is_named(taken: list[int], name: str) -> None:
    with pytest.raises(ConfigError, match=f"expected one of cuda:0 to cuda:1, found {name}"):
        open_device(EngineConfig(device=name))
    assert not taken
