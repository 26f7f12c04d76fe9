"""What may compile, and when."""

from types import SimpleNamespace

import pytest

pytest.importorskip("triton", reason="the kernels need triton")
import triton  # noqa: E402

from engine.engine import Engine  # noqa: E402
from engine.kernels.launch import compiling  # noqa: E402
from engine.types import EngineConfig, LateCompilation, SamplingParams  # noqa: E402


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", None)


def _compiles(module: str) -> bool:
    """What Triton does before it compiles a function of that module."""
    hook = triton.knobs.runtime.jit_cache_hook
    return not hook or not hook(fn=SimpleNamespace(module=module), repr="a kernel", key="")


def test_kernels_compile_while_a_runner_is_made_and_are_refused_afterwards() -> None:
    with compiling():
        assert _compiles("engine.kernels.norm")
    with pytest.raises(LateCompilation, match="found a kernel to compile"):
        _compiles("engine.kernels.norm")
    with compiling():  # a draft model's runner, or the next engine's
        assert _compiles("engine.kernels.norm")


def test_what_others_launch_in_the_same_process_may_compile() -> None:
    with compiling():
        pass
    assert _compiles("somebody.kernels")


def test_a_late_compilation_is_an_error_of_the_step_and_counted(tiny_model) -> None:
    engine = Engine.load(tiny_model, EngineConfig(device="reference", dtype="fp32"))

    def step(*_: object) -> None:
        _compiles("engine.kernels.norm")

    engine.runner.step = step  # type: ignore[method-assign]
    engine.branch("b").commit([3, 4], SamplingParams(max_tokens=1))
    with pytest.raises(LateCompilation):
        engine.step()
    assert engine.metrics()["late_compilations"] == 1
