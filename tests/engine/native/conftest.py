"""Decoders of any shape with random weights, run by the library or by torch."""

import ctypes
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import engine.native.build as build
from engine.device import open_device
from engine.load.loader import Checkpoint, ModelConfig, RopeConfig
from engine.model import Decoder
from engine.native.build import NotBuilt, compile_level, levels, open_level
from engine.native.runner import NativeRunner
from engine.prefix_tree import PrefixTree
from engine.runner import Extension, Runner
from engine.sequence import Sequence as Tokens
from engine.types import EngineConfig
from tests.engine.products import rounded

VOCAB = 200


class RandomCheckpoint(Checkpoint):
    """Weights made as they are asked for, each name's always the same."""

    def __init__(self) -> None:
        """Nothing to open."""

    def __contains__(self, name: str) -> bool:
        return True

    def tensor(self, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor:
        assert shape is not None
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        made = torch.randn(shape, generator=generator, dtype=torch.float32)
        if "norm" in name:
            made = 1 + 0.1 * made
        else:
            made *= 0.1 if len(shape) == 1 else shape[-1] ** -0.5
        return made.bfloat16()


def model_config(**changes: Any) -> ModelConfig:
    """Two layers of a small decoder; keyword arguments change it."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "n_layers": 2,
        "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "norm_eps": 1e-5, "context_length": 256,
        "rope": RopeConfig(), "tied_head": True, **changes,
    }  # fmt: skip
    sizes.setdefault("windows", (0,) * sizes["n_layers"])
    return ModelConfig(**sizes)


@dataclass(slots=True)
class Bench:
    """A decoder behind its runner; sequences are extended by hand."""

    runner: Runner

    def sequence(self, tokens: Sequence[int]) -> Tokens:
        sequence = Tokens(self.runner.pool, PrefixTree(self.runner.pool))
        sequence.tokens = list(tokens)
        return sequence

    def extend(self, *parts: tuple[Tokens, int]) -> list[torch.Tensor]:
        """One step: each sequence by so many tokens; the logits of each."""
        for sequence, n_rows in parts:
            sequence.reserve(n_rows)
        logits = self.runner.run([Extension(s, n, n_logits=n) for s, n in parts])
        assert logits is not None
        for sequence, n_rows in parts:
            sequence.n_resident += n_rows
        return list(logits.clone().split([n_rows for _, n_rows in parts]))

    def logits(self, tokens: Sequence[int], chunks: Sequence[int]) -> torch.Tensor:
        """Of all tokens, taken in by chunks of these sizes."""
        sequence = self.sequence(tokens)
        found = torch.cat([self.extend((sequence, n))[0] for n in chunks if n])
        sequence.release()
        return found


MakeBench = Callable[..., Bench]
Libraries = dict[str, ctypes.CDLL]


@pytest.fixture
def make_bench() -> MakeBench:
    """A bench on a model of this shape: by the library, or with is_native=False by torch."""

    def make(
        config: ModelConfig, *, quant: str | None = "int8", kv_format: str = "plain",
        is_native: bool = True, dtype: str = "bf16", threads: int = 1,
    ) -> Bench:  # fmt: skip
        engine = EngineConfig(dtype=dtype, quant=quant, native=is_native, threads=threads)
        device = open_device(engine)
        decoder = Decoder(
            RandomCheckpoint(), config, dtype=dtype, quant=quant, device="cpu",
            context_length=config.context_length,
            make_linear=device.make_linear if is_native else rounded,
            int4_head=device.int4_head,
        )  # fmt: skip
        pool = decoder.make_pool(24, kv_format, poison=True)
        runner = device.make_runner(decoder, pool, engine, ())
        assert isinstance(runner, Runner)
        assert isinstance(runner, NativeRunner) == is_native
        return Bench(runner)

    return make


@pytest.fixture(scope="session")
def libraries() -> Libraries:
    """Every instruction set that this machine has, plain C among them, by name."""
    found = {}
    for level in (*levels(), "plain"):
        try:
            library = open_level(level)
        except NotBuilt as reason:
            pytest.skip(str(reason))
        if library.native_runs_here():
            found[level] = library
    return found


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which plain C is compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))
        patch.setenv("XDG_CACHE_HOME", str(folder))
        compile_level("plain", build.cache_folder("native"))
    return folder


@pytest.fixture
def filled(built: Path, compiled: Path) -> Path:
    """The cache of `built`, with plain C in it."""
    shutil.copytree(compiled, built, dirs_exist_ok=True)
    return built


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of libraries, compiled in a hurry."""
    monkeypatch.setattr(build, "FLAGS", ("-O0", *build.FLAGS[1:]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path
