"""Owns how large a KV pool is: as asked, a share of a GPU, or with spare room on a CPU."""

from collections.abc import Callable
from dataclasses import replace

import torch

from ..model import Decoder
from ..types import BLOCK_TOKENS, ConfigError, EngineConfig, pool_tokens_for

PROBE_BLOCKS = 1  # a pool of this size tells what a block takes, whatever its format


def with_kv_tokens(
    config: EngineConfig,
    decoder: Decoder,
    context_length: int,
    free: Callable[[str], int] = lambda device: torch.cuda.mem_get_info(device)[0],
) -> EngineConfig:
    """The config with the number of tokens that its share of a GPU's memory is, where it asks for
    one; on a CPU with those that its spare bytes hold.

    context_length: most tokens of one branch, in effect. free: bytes of a device that nobody has.

    Raises:
        ConfigError: the share holds less than one context.
    """
    size = decoder.make_pool(PROBE_BLOCKS, config.kv_format).block_bytes // BLOCK_TOKENS  # a token
    if config.device == "cpu":  # its pages are taken as they are used
        n_spare = config.kv_spare_bytes // size if config.prefix_cache else 0
        n_least = pool_tokens_for(context_length) if config.kv_memory_share else 0
        return replace(config, kv_tokens=max(config.kv_tokens, n_least) + n_spare)
    if not config.kv_memory_share:
        return config
    n_bytes = int(free(decoder.device) * config.kv_memory_share)
    n_tokens = n_bytes // size // BLOCK_TOKENS * BLOCK_TOKENS
    n_one = pool_tokens_for(context_length)
    if n_tokens < n_one:
        raise ConfigError(
            f"kv_memory_share: expected room for one context of {context_length} tokens "
            f"({n_one * size / 1e6:.0f} MB), found {n_bytes / 1e6:.0f} MB in "
            f"{config.kv_memory_share:g} of the free memory"
        )
    return replace(config, kv_tokens=min(n_tokens, config.max_branches * n_one))
