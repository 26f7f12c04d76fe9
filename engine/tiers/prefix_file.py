"""Owns the operator's prefix on disk: keys and values of instructions and tools, across restarts.

A file is named by a digest of all that its numbers depend on, and of its tokens. It is written
beside its place and moved there whole, so that whoever reads sees all of it or nothing; what is not
what it should be is passed over. Nothing here is quick: callers have a thread of their own for it.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..engine import Engine
from ..kept_files import SUFFIX, KeptFiles, cache_folder, code_files, digest, model_files
from ..kv_cache import BlockStore, KvPool
from ..types import BLOCK_TOKENS, EngineConfig

log = logging.getLogger(__name__)


def default_folder() -> Path:
    """`$XDG_CACHE_HOME/voiceloop/prefixes`."""
    return cache_folder("prefixes")


def identity(model: Path, config: EngineConfig, layers: str) -> str:
    """A digest of what the KV of given tokens depends on.

    Weights, tokenizer, template and adapter by the content of their files, the formats, what runs
    the layers (`layers`, and the engine's own code), and the machine it runs on. Reads all weights.
    """
    facts = [
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        torch.cuda.get_device_name(config.device) if config.device.startswith("cuda") else "",
        layers,
        *(config.dtype, config.quant, config.kv_format),
        *(config.device, config.context_length),
        *(
            digest(model_files(f) if f is not None else [])
            for f in (config.adapter_dir, config.eagle_dir)
        ),
        digest(model_files(model)),
        digest(code_files()),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


class PrefixFiles:
    """The prefixes of one engine in a folder that others may share, within a number of bytes."""

    @classmethod
    def of(cls, model: Path, engine: Engine, n_most_bytes: int) -> "PrefixFiles | None":
        """Open the files of a loaded engine in the user's cache; None where `n_bytes` is 0."""
        layers, config = engine.runner.layers, engine.config
        if not n_most_bytes:
            return None
        return cls(default_folder(), n_most_bytes, lambda: identity(model, config, layers))

    def __init__(self, folder: Path, n_most_bytes: int, identify: Callable[[], str]) -> None:
        """identify: the engine's `identity`, asked for once, by the first who reads or writes."""
        self.folder, self.n_most_bytes = folder, n_most_bytes
        self._files, self._identify = KeptFiles(folder, n_most_bytes), identify

    @cached_property
    def _engine(self) -> str:
        return self._identify()

    def path(self, tokens: list[int]) -> Path:
        return self.folder / f"{self._engine[:20]}-{_hash_of(tokens)[:20]}{SUFFIX}"

    def takes(self, n_bytes: int) -> bool:
        return 0 < n_bytes <= self.n_most_bytes

    def read(self, tokens: list[int], pool: KvPool) -> BlockStore | None:
        """The blocks of exactly these tokens; None where there is no sound file of them."""
        path = self.folder
        try:
            path = self.path(tokens)
            with self._files.opened(path.name) as found:
                return self._read(found, tokens, pool)
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, ValueError, RuntimeError) as error:
            log.warning("the prefix file %s is passed over: %s", path, error)
            return None

    def _read(self, path: Path, tokens: list[int], pool: KvPool) -> BlockStore:
        """Raises: OSError, SafetensorError, ValueError, RuntimeError: it is something else."""
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            codes, scales = file.get_tensor("codes"), file.get_tensor("scales")
        found = metadata.get("engine"), metadata.get("tokens"), metadata.get("checksum")
        if found != (self._engine, _hash_of(tokens), _checksum(codes, scales)):
            raise ValueError("expected the numbers it was written with, found others")
        return _as_store(codes, scales, pool, len(tokens) // BLOCK_TOKENS)

    def write(self, tokens: list[int], blocks: BlockStore) -> bool:
        """Keep the blocks of these tokens; the oldest files make room. Returns whether they are."""
        name = self.path(tokens).name
        codes, scales = _as_bytes(blocks.codes), _as_bytes(blocks.scales)
        metadata = {
            "engine": self._engine,
            "tokens": _hash_of(tokens),
            "checksum": _checksum(codes, scales),
        }
        try:
            self._files.write(name, {"codes": codes, "scales": scales}, metadata)
        except (OSError, SafetensorError) as error:
            log.warning("the operator's prefix is not kept in %s: %s", self.folder, error)
            return False
        return True


def _hash_of(tokens: list[int]) -> str:
    return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _checksum(codes: Tensor, scales: Tensor) -> str:
    found = hashlib.sha256()
    for part in (codes, scales):
        found.update(memoryview(part.contiguous().numpy()))
    return found.hexdigest()


def _as_bytes(blocks: Tensor) -> Tensor:
    """[blocks, bytes of each]: formats that files do not know are bytes as well."""
    return blocks.contiguous().view(torch.uint8).view(len(blocks), -1)


def _as_store(codes: Tensor, scales: Tensor, pool: KvPool, n_blocks: int) -> BlockStore:
    """The inverse, for blocks of this pool. Raises: ValueError, RuntimeError where they differ."""
    like = pool.store(1)
    if len(codes) != n_blocks or len(scales) != n_blocks:
        raise ValueError(f"expected {n_blocks} blocks, found {len(codes)}")
    return BlockStore(_from_bytes(codes, like.codes), _from_bytes(scales, like.scales))


def _from_bytes(blocks: Tensor, like: Tensor) -> Tensor:
    """like: one block. Raises: RuntimeError where these are no such blocks."""
    shape = len(blocks), *like.shape[1:]
    return blocks.view(like.dtype).view(shape) if like.numel() else like.expand(shape)
