"""Owns KV blocks that had to leave the pool and lie in the machine's memory meanwhile.

A block goes down with its codes and scales as they are and comes back bit by bit the same, in a
fraction of the time that computing its tokens again would take. Which block lies in which slot,
and which one goes for good when no slot is left, is the prefix tree's.
"""

import time
from typing import Self

import torch

from ..kv_cache import KvPool
from ..types import BLOCK_TOKENS

N_MEASURED = 3  # the first copy of a block also touches its memory for the first time


class HostTier:
    """Slots of one block each. On a GPU their memory is pinned, and copies run on its stream.

    A copy is ordered there like any kernel: before what is launched later into the same block.
    """

    @classmethod
    def open(cls, pool: KvPool, n_bytes: int) -> Self | None:
        """Open a tier of as many slots as fit; None where not one does."""
        n_slots = n_bytes // pool.block_bytes
        return cls(pool, n_slots) if n_slots else None

    def __init__(self, pool: KvPool, n_slots: int) -> None:
        self.n_slots = n_slots
        self._pool, self._store = pool, pool.store(n_slots)
        self._free = list(range(n_slots))
        self.n_saved, self.n_restored = 0, 0  # blocks, since the start
        self.ms_per_block = self._measure()

    @property
    def n_bytes(self) -> int:
        return self.n_slots * self._pool.block_bytes

    @property
    def n_free(self) -> int:
        return len(self._free)

    def save(self, block: int) -> int:
        """Copy a block of the pool into a free slot, of which there must be one; returns it."""
        slot = self._free.pop()
        self._pool.save(block, self._store, slot)
        self.n_saved += 1
        return slot

    def restore(self, slot: int, block: int) -> None:
        """Copy a slot into a block of the pool; the slot is free then."""
        self._pool.restore(self._store, slot, block)
        self.n_restored += 1
        self.forget(slot)

    def forget(self, slot: int) -> None:
        self._free.append(slot)

    def pays(self, ms_per_token: float) -> bool:
        """Whether bringing a block back is faster than computing it; 0: not known, so it is."""
        return not ms_per_token or self.ms_per_block <= BLOCK_TOKENS * ms_per_token

    def _measure(self) -> float:
        """Milliseconds that one block takes to come back, the best of a few."""
        block, best_s = self._pool.allocate(), float("inf")
        for _ in range(N_MEASURED):
            self._pool.save(block, self._store, 0)
            self._wait()
            started = time.perf_counter()
            self._pool.restore(self._store, 0, block)
            self._wait()
            best_s = min(best_s, time.perf_counter() - started)
        self._pool.release([block])
        return best_s * 1e3

    def _wait(self) -> None:
        if self._pool.device.startswith("cuda"):
            torch.cuda.synchronize(self._pool.device)
