"""Owns the choice between the CPU path and the kernels, made once, by the device's name.

Everything else asks the device: for a product of a weight, for a runner of a decoder. "reference"
is the GPU path with every kernel replaced by its torch reference and every graph by a recorded
call, so that its logic runs, and is tested, where no GPU is; "interpreter" runs the kernels
themselves, slowly, in Triton's interpreter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .kv_cache import KvPool
from .linear import MakeLinear, make_linear
from .model import Decoder, Interrupted
from .runner import Extension, Outcome, Runner
from .types import ConfigError, EngineConfig


class StepRunner(Protocol):
    """What the engine, drafters and measurements need of a runner; see `runner.Runner`."""

    decoder: Decoder

    def step(
        self, extensions: list[Extension], interrupted: Interrupted | None = None
    ) -> list[Outcome]: ...
    def run(self, extensions: list[Extension]) -> Tensor | None: ...


# decoder, its pool, the engine's config, the tokens that end a turn (none: no words are staged)
MakeRunner = Callable[[Decoder, KvPool, EngineConfig, tuple[int, ...]], StepRunner]


@dataclass(frozen=True, slots=True)
class Device:
    torch_name: str
    make_linear: MakeLinear
    make_runner: MakeRunner
    drafts_ngrams: bool = False  # inside its steps, so that nobody else need


def _cpu_runner(
    decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...]
) -> StepRunner:
    return Runner(decoder, pool, end_ids)


def open_device(name: str, dtype: str) -> Device:
    """The device of that name, for activations of that type. Raises: ConfigError."""
    match name.partition(":")[0]:
        case "cpu":
            return Device("cpu", make_linear, _cpu_runner)
        case "cuda" if not torch.cuda.is_available():
            raise ConfigError(f"device: expected a GPU for {name}, found none")
        case "cuda" if dtype != "bf16":
            raise ConfigError(f"device: expected dtype bf16 for {name}, found {dtype}")
        case "reference" if dtype == "fp64":
            raise ConfigError(f"device: expected dtype bf16 or fp32 for {name}, found {dtype}")
        case "cuda" | "reference" | "interpreter":
            return _kernel_device(name)
    raise ConfigError(f"device: expected cpu, cuda, reference or interpreter, found {name!r}")


def _kernel_device(name: str) -> Device:
    try:
        import triton  # noqa: F401
    except ImportError:
        raise ConfigError(f"device: expected triton installed for {name}, found it not") from None
    from .kernels.decoder import KernelSet
    from .kernels.graph_runner import GraphRunner

    kernels = KernelSet(is_reference=name == "reference")

    def make_runner(
        decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...]
    ) -> StepRunner:
        return GraphRunner(decoder, pool, config, end_ids, kernels)

    torch_name = name if name.startswith("cuda") else "cpu"
    return Device(torch_name, kernels.make_linear, make_runner, drafts_ngrams=True)
