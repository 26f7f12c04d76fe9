"""Owns how large a KV pool may be where a share of the free memory is asked for, not a number."""

import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ..kv_cache import KvPool
from ..model import Decoder
from ..types import BLOCK_TOKENS, ConfigError, EngineConfig, pool_tokens_for

PROBE_BLOCKS = 1  # a pool of this size tells what a block takes, whatever its format


def bytes_per_token(pool: KvPool) -> int:
    """Count the bytes of one token's keys, values and scales, in all layers."""
    layers = [*pool.blocks, *pool.scale_blocks]
    return sum(layer.numel() * layer.element_size() for layer in layers) // (
        pool.n_blocks * BLOCK_TOKENS
    )


def free_bytes(
    device: str, meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")
) -> int:
    """Memory of a torch device that nobody has taken, or that a container may still take.

    Raises: ConfigError where nobody tells.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    return int(min(_free_of_machine(meminfo), _left_of_container(cgroup)))


def _left_of_container(cgroup: Path) -> float:
    """Return what version 2 of control groups leaves; infinite where there is no bound."""
    try:
        most = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = (cgroup / "memory.current").read_text(encoding="ascii")
        return math.inf if most == "max" else max(0, int(most) - int(used))
    except (OSError, ValueError):
        return math.inf


def _free_of_machine(meminfo: Path) -> int:
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        raise ConfigError(
            "kv_memory_share: expected a system that tells its free memory, found none: "
            "set kv_tokens"
        ) from None


def with_kv_tokens(
    config: EngineConfig,
    decoder: Decoder,
    context_length: int,
    free: Callable[[str], int] = free_bytes,
) -> EngineConfig:
    """The config with the number of tokens that its share of memory is, where it asks for one.

    context_length: most tokens of one branch, in effect.

    Raises:
        ConfigError: the share holds less than one context, or free memory is not known.
    """
    if not config.kv_memory_share:
        return config
    n_bytes = int(free(decoder.device) * config.kv_memory_share)
    size = bytes_per_token(decoder.make_pool(PROBE_BLOCKS, config.kv_format))
    n_tokens = n_bytes // size // BLOCK_TOKENS * BLOCK_TOKENS
    n_one = pool_tokens_for(context_length)
    if n_tokens < n_one:
        raise ConfigError(
            f"kv_memory_share: expected room for one context of {context_length} tokens "
            f"({n_one * size / 1e6:.0f} MB), found {n_bytes / 1e6:.0f} MB in "
            f"{config.kv_memory_share:g} of the free memory"
        )
    return replace(config, kv_tokens=min(n_tokens, config.max_branches * n_one))
