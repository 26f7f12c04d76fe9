"""A KV pool that is a share of the memory that is free."""

from dataclasses import replace
from pathlib import Path

import pytest

from engine.engine import Engine
from engine.load.assembly import read_model
from engine.load.kv_budget import with_kv_tokens
from engine.types import BLOCK_TOKENS, MAX_AHEAD_TOKENS, ConfigError, EngineConfig, OutOfMemory

CONTEXT = 512  # the tiny model's
# 2 layers, 2 KV heads of 8 numbers, keys and values: 64 numbers in bf16, or bytes and a bf16 scale
# for each of 8 vectors.
SIZES = {"plain": 128, "int8": 64 + 16}


@pytest.mark.parametrize("kv_format", SIZES)
def test_a_share_of_free_memory_becomes_as_many_tokens_as_fit(
    tiny_model: Path, kv_format: str
) -> None:
    config = EngineConfig(
        device="reference", kv_memory_share=0.5, kv_format=kv_format, max_branches=1000
    )
    _, decoder = read_model(tiny_model, config)
    pool = decoder.make_pool(7, kv_format)
    assert pool.block_bytes // BLOCK_TOKENS == SIZES[kv_format]
    found = with_kv_tokens(config, decoder, CONTEXT, lambda device: 10_000_000)
    assert found.kv_tokens % BLOCK_TOKENS == 0
    n_bytes = found.kv_tokens * SIZES[kv_format]
    assert 5_000_000 - BLOCK_TOKENS * SIZES[kv_format] < n_bytes <= 5_000_000


def test_no_more_is_taken_than_all_branches_could_use(tiny_model: Path) -> None:
    config = EngineConfig(device="reference", kv_memory_share=0.5, max_branches=3)
    _, decoder = read_model(tiny_model, config)
    found = with_kv_tokens(config, decoder, CONTEXT, lambda device: 10**12)
    assert found.kv_tokens == 3 * (CONTEXT + 2 * BLOCK_TOKENS)


def test_the_room_of_one_branch_holds_a_whole_context_and_what_is_computed_ahead(
    tiny_model: Path,
) -> None:
    config = EngineConfig(kv_tokens=256, kv_memory_share=0.6, context_length=500)
    engine = Engine.load(tiny_model, config)
    engine.pool.n_ahead = MAX_AHEAD_TOKENS  # as on a GPU
    engine.require_room(500)
    n_most = engine.pool.n_blocks * BLOCK_TOKENS - 2 * BLOCK_TOKENS
    engine.require_room(n_most)
    with pytest.raises(OutOfMemory, match=f"at most {n_most} tokens"):
        engine.require_room(n_most + 1)


def test_a_share_that_holds_no_conversation_is_refused(tiny_model: Path) -> None:
    config = EngineConfig(device="reference", kv_memory_share=0.1)
    _, decoder = read_model(tiny_model, config)
    with pytest.raises(ConfigError, match="expected room for one context of 512 tokens"):
        with_kv_tokens(config, decoder, CONTEXT, lambda device: 100_000)


def test_on_a_cpu_spare_memory_keeps_what_the_asked_room_does_not(tiny_model: Path) -> None:
    spare = EngineConfig(kv_tokens=256, kv_spare_bytes=1024 * SIZES["plain"])
    assert Engine.load(tiny_model, spare).pool.n_blocks * BLOCK_TOKENS == 256 + 1024
    for other in ({"device": "reference"}, {"prefix_cache": False}):
        engine = Engine.load(tiny_model, replace(spare, **other))  # type: ignore[arg-type]
        assert engine.pool.n_blocks * BLOCK_TOKENS == 256
