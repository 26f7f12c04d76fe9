"""Blocks that leave the pool for the machine's memory, and come back the same."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import pytest
import torch

from engine.engine import Engine
from engine.kv_cache import KvPool
from engine.prefix_tree import PUBLIC, PrefixTree
from engine.sequence import Sequence
from engine.tiers.host_tier import HostTier
from engine.types import BLOCK_TOKENS, Done, Event, SamplingParams, TextDelta

MakeEngine = Callable[..., Engine]
GREEDY = SamplingParams(max_tokens=6, ignore_eos=True)
N_LAYERS, HEAD_DIM = 2, 2
KINDS = (
    "open", "open", "extend", "truncate", "fork", "publish", "park", "restore", "restore", "close",
    "close",
)  # fmt: skip
SPEECH = [7 + (i * i * 31) % 90 for i in range(300)]


def make_pool(n_blocks: int, kv_format: str = "plain") -> KvPool:
    return KvPool(
        n_layers=N_LAYERS, n_kv_heads=1, head_dim=HEAD_DIM, n_blocks=n_blocks, dtype=torch.float64,
        kv_format=kv_format, poison=True,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def expected_kv(tokens: tuple[int, ...]) -> torch.Tensor:
    """What the dense oracle has for every position: a number of all tokens up to it (I1).

    [tokens, layers, 2, 1, head_dim]
    """
    running, sums = 0, list[int]()
    for token in tokens:
        running = (running * 31 + token + 1) % 100_003
        sums.append(running)
    base = torch.tensor(sums, dtype=torch.float64)
    place = torch.arange(N_LAYERS * 2 * HEAD_DIM, dtype=torch.float64)
    return (base[:, None] + place / 64).view(-1, N_LAYERS, 2, 1, HEAD_DIM)


def resident_kv(sequence: Sequence) -> torch.Tensor:
    """The same of what lies in the pool for the resident tokens."""
    slots = slots_of(sequence, 0, sequence.n_resident)
    return torch.stack([layer[slots] for layer in sequence.pool.slots], 1)


def slots_of(sequence: Sequence, first: int, last: int) -> torch.Tensor:
    table = sequence.table
    places = (divmod(position, BLOCK_TOKENS) for position in range(first, last))
    return torch.tensor([table[i] * BLOCK_TOKENS + place for i, place in places], dtype=torch.long)


def compute(sequence: Sequence) -> None:
    """Make every pending token resident, as a step of the engine does."""
    first = sequence.n_resident
    sequence.reserve(sequence.n_pending)
    kv = expected_kv(tuple(sequence.tokens))[first:]
    slots = slots_of(sequence, first, len(sequence.tokens))
    for layer in range(N_LAYERS):
        sequence.pool.slots[layer][slots] = kv[:, layer]
    sequence.n_resident = len(sequence.tokens)


@dataclass
class World:
    """Sequences under random operations, each compared with the oracle after every one."""

    n_blocks: int
    n_slots: int
    random: random.Random
    sequences: list[tuple[Sequence, int]] = field(default_factory=list)  # and how much is committed

    def __post_init__(self) -> None:
        self.pool = make_pool(self.n_blocks)
        self.tier = HostTier(self.pool, self.n_slots)
        self.tree = PrefixTree(self.pool, tier=self.tier)
        self.tree.public = SPEECH[:40]

    def tokens(self) -> list[int]:
        """Of a few families, so that prefixes are shared and part."""
        n, family = self.random.randrange(1, 120), self.random.randrange(4)
        cut = self.random.choice((16, 33, 40, 64))
        return SPEECH[:cut] + [family] * n if family else SPEECH[:n]

    def room_for(self, n_blocks: int) -> bool:
        return self.tree.can_evict(n_blocks - self.pool.n_free)

    def operate(self) -> None:
        kind = self.random.choice(KINDS)
        if kind == "park":
            self.tree.evict(self.random.randrange(1, 6))
        elif kind == "open":
            sequence = Sequence(self.pool, self.tree, self.random.choice(("a", "a", "b")))
            sequence.retarget(self.tokens())
            self.sequences.append((sequence, 0))
            if self.random.random() < 0.8:
                self.change("restore", len(self.sequences) - 1)
        elif self.sequences:
            self.change(kind, self.random.randrange(len(self.sequences)))

    def change(self, kind: str, i: int) -> None:
        sequence, n_committed = self.sequences[i]
        n = len(sequence.tokens)
        if kind == "close":
            sequence.publish(n_committed)
            sequence.release()
            del self.sequences[i]
        elif kind == "extend" and self.room_for(sequence.n_blocks_to_reserve(sequence.n_pending)):
            compute(sequence)
        elif kind == "truncate":
            at = self.random.randrange(n_committed, n + 1)
            sequence.truncate(at)
            sequence.tokens += [self.random.randrange(200) for _ in range(self.random.randrange(9))]
        elif kind == "fork":
            self.sequences.append((sequence.fork(), 0))
        elif kind == "publish":
            if self.room_for(sequence.n_blocks_to_reserve(sequence.n_pending)):
                compute(sequence)
            sequence.publish(n)
            self.sequences[i] = (sequence, min(n, sequence.n_resident))
        elif kind == "restore":
            sequence.restore(min(sequence.n_to_restore(), self.random.randrange(1, 9)))

    def check(self) -> None:
        held = list(self.tree.held())
        for sequence, _ in self.sequences:
            held += sequence.table
            expected = expected_kv(tuple(sequence.tokens[: sequence.n_resident]))
            assert torch.equal(resident_kv(sequence), expected)
        self.pool.check_integrity(held)
        self.tree.check_integrity()


def test_ten_thousand_operations_part_nowhere_from_a_dense_oracle() -> None:
    n_saved = n_restored = 0
    for seed in range(20):
        numbers = random.Random(seed)
        world = World(numbers.choice((10, 24, 60)), numbers.choice((1, 6, 40)), numbers)
        for _ in range(500):
            world.operate()
            world.check()
            while len(world.sequences) > 4:
                world.change("close", 0)
        n_saved += world.tier.n_saved
        n_restored += world.tier.n_restored
    assert n_saved > 1000 and n_restored > 300  # else the operations prove nothing


@pytest.mark.parametrize("kv_format", ["plain", "int8"])
def test_a_block_comes_back_with_its_codes_and_scales(kv_format: str) -> None:
    pool = make_pool(4, kv_format)
    tier = HostTier(pool, 2)
    block, other = pool.allocate(), pool.allocate()
    generator = torch.Generator().manual_seed(1)
    for layer in range(N_LAYERS):
        vectors = torch.randn(BLOCK_TOKENS, 2, 1, HEAD_DIM, generator=generator).double()
        slots = slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS)
        pool.write(layer, slots, vectors)
    before = [read.clone() for read in pool.read(1, slice(block, block + 1), 0, BLOCK_TOKENS)]
    slot = tier.save(block)
    pool.release([block])
    tier.restore(slot, other)
    after = pool.read(1, slice(other, other + 1), 0, BLOCK_TOKENS)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert tier.n_free == 2


def test_the_operators_prefix_is_shared_by_all_tenants_and_the_last_to_make_room() -> None:
    pool = make_pool(8)
    tree = PrefixTree(pool)
    tree.public = SPEECH[:40]
    first = Sequence(pool, tree, "a")
    first.retarget(SPEECH[:64])
    compute(first)
    first.publish(64)
    first.release()
    assert len(tree.match(SPEECH[:64], "b")) == 2  # whole blocks of 40 tokens
    assert len(tree.match(SPEECH[:64], "a")) == 4
    newest = Sequence(pool, tree, "a")
    newest.retarget([3] * 32)
    compute(newest)
    newest.publish(32)
    newest.release()
    assert tree.evict(4) == 4
    assert len(tree.match(SPEECH[:64], "b")) == 2
    assert tree.can_evict(2) and tree.evict(9) == 2  # it keeps nobody from being served


def test_what_is_not_the_operators_stays_with_its_tenant() -> None:
    pool = make_pool(8)
    tree = PrefixTree(pool)
    sequence = Sequence(pool, tree, "a")
    sequence.retarget(SPEECH[:64])
    compute(sequence)
    sequence.publish(64)
    assert tree.match(SPEECH[:64], "b") == tree.match(SPEECH[:64], PUBLIC) == []


def drain(engine: Engine) -> list[Event]:
    events: list[Event] = []
    for _ in range(2000):
        events += engine.step()
        if not engine.has_work():
            return events
    raise AssertionError("expected the engine to come to rest")


def answer(engine: Engine, name: str, tokens: list[int]) -> tuple[str, Done]:
    branch = engine.branch(name, tokens[:-2])
    branch.commit(tokens[-2:], GREEDY)
    events = drain(engine)
    branch.close()
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    return text, next(event for event in events if isinstance(event, Done))


def one_slot(engine: Engine) -> int:
    return engine.pool.block_bytes


def test_a_conversation_that_had_to_make_room_comes_back_without_being_computed(
    make_engine: MakeEngine,
) -> None:
    prompt = SPEECH[:200]
    tier_bytes = 64 * one_slot(make_engine())
    engine = make_engine(kv_tokens=320, host_tier_bytes=tier_bytes)
    expected, _ = answer(engine, "first", prompt)
    answer(engine, "other", [9] * 250)  # more than both find room for
    assert engine.metrics()["kv_blocks_parked"] > 0
    text, done = answer(engine, "again", prompt)
    assert text == expected
    assert done.usage.prefilled_tokens <= 2 + BLOCK_TOKENS
    assert done.usage.cached_tokens + done.usage.prefilled_tokens == len(prompt)


def test_what_comes_back_slower_than_it_is_computed_is_computed(make_engine: MakeEngine) -> None:
    prompt = SPEECH[:200]
    tier_bytes = 64 * one_slot(make_engine())
    engine = make_engine(kv_tokens=320, host_tier_bytes=tier_bytes)
    expected, _ = answer(engine, "first", prompt)
    answer(engine, "other", [9] * 250)
    assert engine.tree.tier is not None
    engine.tree.tier.ms_per_block = 1e9
    text, done = answer(engine, "again", prompt)
    assert text == expected and engine.tree.tier.n_restored == 0
    assert done.usage.prefilled_tokens > 100


def test_a_step_brings_back_no_more_than_its_time_allows(make_engine: MakeEngine) -> None:
    prompt = SPEECH[:200]
    tier_bytes = 64 * one_slot(make_engine())
    engine = make_engine(kv_tokens=320, host_tier_bytes=tier_bytes, step_budget_ms=10.0)
    expected, _ = answer(engine, "first", prompt)
    answer(engine, "other", [9] * 250)
    tier = engine.tree.tier
    assert tier is not None
    tier.ms_per_block, engine.scheduler.cost.ms_per_row = 4.0, 1.0  # two blocks a step
    branch = engine.branch("again", prompt[:-2])
    branch.commit(prompt[-2:], GREEDY)
    engine.step()
    assert tier.n_restored == 2 and engine.has_work()
    events = drain(engine)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == expected
    assert tier.n_restored > 2


def test_it_is_back_before_the_turn_ends_where_the_branch_is_opened_at_the_first_voice(
    make_engine: MakeEngine,
) -> None:
    prompt = SPEECH[:200]
    tier_bytes = 64 * one_slot(make_engine())
    engine = make_engine(kv_tokens=320, host_tier_bytes=tier_bytes)
    expected, _ = answer(engine, "first", prompt)
    answer(engine, "other", [9] * 250)
    branch = engine.branch("again", prompt[:-2])
    drain(engine)  # the caller speaks; no word is known yet
    assert engine.metrics()["kv_blocks_restored"] > 0
    branch.commit(prompt[-2:], GREEDY)
    events = drain(engine)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == expected
    [done] = [event for event in events if isinstance(event, Done)]
    assert done.usage.prefilled_tokens == 2


def test_the_operators_prefix_comes_back_for_another_tenant(make_engine: MakeEngine) -> None:
    tier_bytes = 64 * one_slot(make_engine())
    engine = make_engine(kv_tokens=320, host_tier_bytes=tier_bytes)
    engine.tree.public = SPEECH[:64]
    answer(engine, "first", SPEECH[:70])
    engine.tree.evict(20)
    assert engine.tree.n_parked and not len(engine.tree)
    branch = engine.branch("caller", SPEECH[:68], "another key")
    branch.commit([5, 6], GREEDY)
    done = next(event for event in drain(engine) if isinstance(event, Done))
    assert done.usage.cached_tokens == 64
    branch.close()
    engine.check_integrity()
