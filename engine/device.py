"""Owns the choice between the CPU path and the kernels, made once, by the device's name.

Everything else asks the device: for a product of a weight, for a runner of a decoder. "reference"
is the GPU path with every kernel replaced by its torch reference and every graph by a recorded
call, so that its logic runs, and is tested, where no GPU is; "interpreter" runs the kernels
themselves, slowly, in Triton's interpreter.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from .adapters import Adapters
from .kv_cache import KvPool
from .linear import INT4_GROUP, Linear, MakeLinear, make_linear
from .load.loader import Checkpoint
from .load.packed import Stored
from .load.quant import quantize
from .model import Decoder, Interrupted
from .native.build import COST_OF_TORCH, NotBuilt
from .native.build import library as native_library
from .native.layout import GROUP, padded
from .native.linear import NativeLinear
from .native.linear import is_native as is_native_weight
from .native.packed_file import PackedWeights
from .native.runner import NativeRunner, can_run
from .runner import Extension, Outcome, Runner
from .sequence import Sequence
from .types import ConfigError, DeviceFault, EngineConfig


class StepRunner(Protocol):
    """The interface of every runner; see `runner.Runner`."""

    decoder: Decoder
    layers: str  # what runs them, in words

    def step(
        self, extensions: list[Extension], interrupted: Interrupted | None = None
    ) -> Items[Outcome | None]: ...
    def run(self, extensions: list[Extension]) -> Tensor | None: ...
    def guess(self, sequence: Sequence, n_tokens: int) -> list[int] | None: ...


# decoder, its pool, the engine's config, the tokens that end a turn (none: no words are staged)
MakeRunner = Callable[[Decoder, KvPool, EngineConfig, tuple[int, ...]], StepRunner]

OpenPacked = Callable[[Path, EngineConfig], PackedWeights | None]
OpenAdapters = Callable[[Checkpoint, Decoder, Items[Path]], Adapters]


def _by_torch(base: Checkpoint, decoder: Decoder, folders: Items[Path]) -> Adapters:
    found = Adapters(base, decoder.layers, folders, dtype=decoder.dtype, device=str(decoder.device))
    found.wrap()
    return found


def _by_library(base: Checkpoint, decoder: Decoder, folders: Items[Path]) -> Adapters:
    """As the library reads them; where torch runs the layers, its products add them."""
    if not can_run(decoder):
        return _by_torch(base, decoder, folders)
    return Adapters(
        base, decoder.layers, folders, dtype=torch.bfloat16, device="cpu", padded=padded
    )


@dataclass(frozen=True, slots=True)
class Device:
    torch_name: str
    make_linear: MakeLinear
    make_runner: MakeRunner
    drafts_inside: bool = False  # n-grams, or a head, in its steps, so that nobody else need
    lacks: str = ""  # what it goes without, and what that costs, in words
    open_packed: OpenPacked | None = None  # weights as it reads them, kept on disk
    open_adapters: OpenAdapters = _by_torch
    int4_head: bool = True  # its steps compute likely logits again, as `Decoder.logits` does


def _cpu_runner(
    decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...]
) -> StepRunner:
    return Runner(decoder, pool, end_ids)


def open_device(config: EngineConfig) -> Device:
    """The device that a config names, for its activations. Raises: ConfigError."""
    name, dtype = config.device, config.dtype
    match name.partition(":")[0]:
        case "cpu":
            return _cpu(config.native and dtype == "bf16")
        case "cuda" if not torch.cuda.is_available():
            raise ConfigError(f"device: expected a GPU for {name}, found none")
        case "cuda" if dtype != "bf16":
            raise ConfigError(f"device: expected dtype bf16 for {name}, found {dtype}")
        case "reference" if dtype == "fp64":
            raise ConfigError(f"device: expected dtype bf16 or fp32 for {name}, found {dtype}")
        case "cuda":
            _take_gpu(name)
            return _kernel_device(config) if config.kernels else _torch_device(name)
        case "reference" | "interpreter":
            return _kernel_device(config) if config.kernels else _torch_device(name)
    raise ConfigError(f"device: expected cpu, cuda, reference or interpreter, found {name!r}")


def _take_gpu(name: str) -> None:
    """Make a GPU this thread's own: kernels and graphs go to that one, wherever tensors lie.

    Raises: ConfigError where it is not there.
    """
    index, n_devices = name.partition(":")[2] or "0", torch.cuda.device_count()
    if not index.isdecimal() or int(index) >= n_devices:
        raise ConfigError(f"device: expected one of cuda:0 to cuda:{n_devices - 1}, found {name}")
    torch.cuda.set_device(int(index))


def _cpu(is_native: bool) -> Device:
    """The library's layers where it can be had, torch's otherwise."""
    torch_device = Device("cpu", make_linear, _cpu_runner)
    if not is_native:
        return torch_device
    try:
        library = native_library()
    except NotBuilt as reason:
        return replace(torch_device, lacks=f"{reason}; {COST_OF_TORCH}")

    def make_native_linear(
        weight: Stored, bias: Tensor | None, *, dtype: torch.dtype, quant: str | None, device: str
    ) -> Linear:
        rounded = quantize(weight, quant, INT4_GROUP, int8_group=GROUP)
        if is_native_weight(rounded):
            return NativeLinear(library, rounded, bias, dtype)
        return make_linear(rounded, bias, dtype=dtype, quant=None, device=device)

    def make_runner(
        decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...]
    ) -> StepRunner:
        if can_run(decoder):
            return NativeRunner(library, decoder, pool, end_ids, config.threads)
        return Runner(decoder, pool, end_ids)

    def open_packed(model: Path, config: EngineConfig) -> PackedWeights | None:
        return PackedWeights.of(model, config, library)

    return Device(
        "cpu", make_native_linear, make_runner, open_packed=open_packed, open_adapters=_by_library
    )


def _torch_device(name: str) -> Device:
    """Plain torch where tensors lie: what serves on a card that the kernels do not run on."""
    return Device(name if name.startswith("cuda") else "cpu", make_linear, _cpu_runner)


def _kernel_device(config: EngineConfig) -> Device:
    name = config.device
    try:
        import triton  # noqa: F401
    except ImportError:
        raise ConfigError(f"device: expected triton installed for {name}, found it not") from None
    from .graphs.graph_runner import GraphRunner
    from .kernels.decoder import KernelSet
    from .kernels.launch import LEAST_CAPABILITY, capability, compiling

    torch_name = name if name.startswith("cuda") else "cpu"
    found = capability(torch.device(torch_name))
    if found < LEAST_CAPABILITY:
        raise DeviceFault(
            f"device: expected compute capability {LEAST_CAPABILITY / 10} or more of {name} for "
            f"the kernels, found {found / 10}"
        )
    kernels = KernelSet(is_reference=name == "reference")

    def make_runner(
        decoder: Decoder, pool: KvPool, config: EngineConfig, end_ids: tuple[int, ...]
    ) -> StepRunner:
        model = decoder.config
        if model.is_sandwiched or model.activation != "silu" or model.logit_cap:
            raise DeviceFault(
                f"device: expected layers that the kernels of {name} run, found norms behind "
                "attention, GELU or a cap on logits (Gemma 3)"
            )
        with compiling():
            return GraphRunner(decoder, pool, config, end_ids, kernels)

    return Device(torch_name, kernels.make_linear, make_runner, drafts_inside=True, int4_head=False)
