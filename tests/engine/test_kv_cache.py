"""The block pool and the prefix tree by themselves."""

from pathlib import Path

import pytest
import torch

from engine.kv_cache import KvPool
from engine.kv_format import KV_FORMATS
from engine.prefix_tree import PUBLIC, PrefixTree
from engine.sequence import Sequence
from engine.types import IntegrityError, OutOfMemory

STATUS = Path("/proc/self/status")


def make_pool(n_blocks: int = 8) -> KvPool:
    return KvPool(
        n_layers=1, n_kv_heads=1, head_dim=2, n_blocks=n_blocks, dtype=torch.float64, poison=True
    )


def resident(pool: KvPool, tree: PrefixTree, tokens: list[int], salt: str = "") -> Sequence:
    """A sequence whose KV is computed: every slot holds its own token id."""
    sequence = Sequence(pool, tree, salt)
    sequence.retarget(tokens)
    first = sequence.n_resident
    sequence.reserve(sequence.n_pending)
    for position in range(first, len(tokens)):
        slot = sequence.table[position // 16] * 16 + position % 16
        pool.slots[0][slot] = float(tokens[position])
    sequence.n_resident = len(tokens)
    return sequence


def kv_of(sequence: Sequence) -> list[float]:
    keys, _ = sequence.pool.read(0, torch.tensor(sequence.table), 0, sequence.n_resident)
    return [float(value) for value in keys[0, 0, :, 0]]


@pytest.mark.skipif(not STATUS.is_file(), reason="this system does not tell what is resident")
def test_blocks_that_nobody_has_written_take_no_memory() -> None:
    def resident_kb() -> int:
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    before_kb = resident_kb()
    pool = KvPool(n_layers=8, n_kv_heads=4, head_dim=64, n_blocks=2048, dtype=torch.bfloat16)
    n_kb = sum(layer.numel() * layer.itemsize for layer in pool.blocks) // 1024
    assert n_kb == 256 * 1024 and resident_kb() - before_kb < n_kb // 8
    pool.blocks[3][7] = 1.0
    assert not pool.blocks[3][6].any() and not pool.blocks[7][2047].any()


def test_a_fork_shares_until_somebody_writes() -> None:
    pool = make_pool()
    tree = PrefixTree(pool)
    tokens = list(range(20))
    sequence = resident(pool, tree, tokens)
    fork = sequence.fork()
    assert pool.n_free == 6
    fork.tokens += [99]
    fork.reserve(1)
    pool.slots[0][fork.table[1] * 16 + 4] = 99.0
    fork.n_resident += 1
    assert fork.table[0] == sequence.table[0] and fork.table[1] != sequence.table[1]
    assert kv_of(sequence) == tokens
    assert kv_of(fork) == [*tokens, 99]


def test_truncating_into_a_shared_block_copies_it_before_the_next_write() -> None:
    pool = make_pool()
    tree = PrefixTree(pool)
    first = resident(pool, tree, list(range(32)))
    first.publish(32)
    second = Sequence(pool, tree)
    second.retarget([*range(32), 50])
    assert second.table == first.table
    second.truncate(20)
    assert second.n_blocks_to_reserve(1) == 1
    second.reserve(1)
    assert second.table[1] != first.table[1]
    assert kv_of(first) == list(range(32))
    assert kv_of(second) == list(range(20))


def test_salts_share_nothing() -> None:
    pool = make_pool()
    tree = PrefixTree(pool)
    resident(pool, tree, list(range(32)), "a").publish(32)
    assert tree.match(list(range(32)), "b") == []
    assert len(tree.match(list(range(32)), "a")) == 2


def test_what_a_tenant_had_before_the_operators_prefix_was_named_stays_its_own() -> None:
    pool = make_pool(12)
    tree = PrefixTree(pool)
    tokens = list(range(48))
    sequences = [resident(pool, tree, tokens[:16], "a")]
    sequences[0].publish(16)
    tree.public = tokens
    # Two that computed the rest at the same time, and the operator's own after them.
    sequences += [resident(pool, tree, tokens, salt) for salt in ("a", "a", PUBLIC)]
    for sequence in sequences[1:]:
        sequence.publish(48)
        tree.check_integrity()
    assert len(tree.match(tokens, "a")) == len(tree.match(tokens, "b")) == 3
    for sequence in sequences:
        sequence.release()
    n_held = len(tree)
    for _ in range(n_held):
        assert tree.evict(1) == 1
        tree.check_integrity()
    pool.check_integrity(tree.held())


def test_the_operators_prefix_is_shared_by_all_tenants_and_the_last_to_make_room() -> None:
    pool, tokens = make_pool(), list(range(64))
    tree = PrefixTree(pool)
    tree.public = tokens[:40]
    for said in (tokens, [90] * 32):  # the newer one goes first all the same
        sequence = resident(pool, tree, said, "a")
        sequence.publish(len(said))
        sequence.release()
    assert len(tree.match(tokens, "b")) == 2  # whole blocks of 40 tokens
    assert len(tree.match(tokens, "a")) == 4
    tree.match([90] * 32, "a")
    assert tree.evict(4) == 4
    assert len(tree.match(tokens, "b")) == 2
    assert tree.can_evict(2) and tree.evict(9) == 2  # it keeps nobody from being served


def test_eviction_takes_the_oldest_leaf_and_spares_what_is_in_use() -> None:
    pool = make_pool(6)
    tree = PrefixTree(pool)
    used = resident(pool, tree, list(range(32)))
    used.publish(32)
    for start in (100, 200):
        sequence = resident(pool, tree, [start + i for i in range(32)])
        sequence.publish(32)
        sequence.release()
    tree.match([100 + i for i in range(32)])  # 200... is the oldest now
    assert tree.can_evict(4) and not tree.can_evict(5)
    assert tree.evict(1) == 1
    assert len(tree.match([200 + i for i in range(32)])) == 1
    assert len(tree.match([100 + i for i in range(32)])) == 2
    assert tree.evict(9) == 3
    assert kv_of(used) == list(range(32))
    tree.check_integrity()
    pool.check_integrity([*tree.held(), *used.table])


def test_a_parent_whose_child_is_in_use_cannot_be_evicted() -> None:
    pool = make_pool()
    tree = PrefixTree(pool)
    first, twin = (resident(pool, tree, list(range(48))) for _ in range(2))
    first.publish(16)
    twin.publish(48)  # its own later blocks hang under the first's
    first.release()
    assert tree.can_evict(0) and not tree.can_evict(1)
    assert tree.evict(5) == 0


def test_blocks_of_one_sequence_are_neighbours_where_possible() -> None:
    pool = make_pool()
    tree = PrefixTree(pool)
    sequence = Sequence(pool, tree)
    sequence.reserve(20)
    other = Sequence(pool, tree)
    other.reserve(16)
    other.release()
    sequence.reserve(64)
    assert list(sequence.table) == list(range(4))


def test_a_full_pool_raises_and_stays_sound() -> None:
    pool = make_pool(2)
    sequence = Sequence(pool, PrefixTree(pool))
    with pytest.raises(OutOfMemory, match="all 2 in use"):
        sequence.reserve(40)
    pool.check_integrity(sequence.table)
    sequence.release()
    assert pool.n_free == 2


def test_the_integrity_check_sees_leaks_and_double_frees() -> None:
    pool = make_pool(2)
    block = pool.allocate()
    with pytest.raises(IntegrityError, match="expected 0 references, found 1"):
        pool.check_integrity([])
    pool.release([block])
    with pytest.raises(IntegrityError, match="found it free"):
        pool.release([block])


@pytest.mark.parametrize(("name", "error"), [("plain", 0.0), ("int8", 0.005)])
def test_kv_formats_keep_each_token_and_head_to_their_precision(name: str, error: float) -> None:
    kv_format = KV_FORMATS[name](torch.float32)
    sizes = torch.tensor([1e-6, 1.0, 300.0])[:, None, None]
    vectors = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) * sizes
    vectors[1, 1] = 0
    codes, scales = kv_format.encode(vectors)
    assert codes.shape == (3, 2, 8)
    largest = vectors.abs().amax(-1, keepdim=True)
    assert ((kv_format.decode(codes, scales) - vectors).abs() <= error * largest).all()
