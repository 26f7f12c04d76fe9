"""Owns the paged KV memory: one tensor of blocks, their reference counts, and the free list.

A block holds `BLOCK_TOKENS` consecutive tokens of every layer. Whoever keeps a block id holds one
reference; a block is free when none is left. Sequences write only into blocks they own alone (I3).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .types import BLOCK_TOKENS, IntegrityError, OutOfMemory


class KvPool:
    """Blocks of [layer, block, token in block, key or value, kv head, head_dim]."""

    def __init__(
        self,
        *,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_blocks: int,
        dtype: torch.dtype,
        device: str = "cpu",
        poison: bool = False,
    ) -> None:
        """poison: fill freed blocks with NaN, so that a read of one shows up (tests)."""
        shape = (n_layers, n_blocks, BLOCK_TOKENS, 2, n_kv_heads, head_dim)
        # Zeros: a masked slot still meets the softmax's 0, and 0 * NaN is NaN.
        self._whole = torch.zeros(shape, dtype=dtype, device=device)
        # Views by layer: indexing them costs less than indexing the whole.
        self.blocks = list(self._whole.unbind(0))
        self.slots = [layer.flatten(0, 1) for layer in self.blocks]
        self.n_blocks, self.poison = n_blocks, poison
        self.refs = [0] * n_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))
        # Asked for blocks when none is free; set by the prefix tree, returns how many it gave back.
        self.evict: Callable[[int], int] = lambda n_blocks: 0
        if poison:
            self._whole.fill_(torch.nan)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def allocate(self, after: int | None = None) -> int:
        """One block, with one reference; the neighbour of `after` if it is free.

        A sequence whose blocks are neighbours is read without a gather.
        Raises: OutOfMemory.
        """
        if not self._free and not self.evict(1):
            raise OutOfMemory(f"expected a free KV block, found all {self.n_blocks} in use")
        if after is not None and after + 1 in self._free:
            block = after + 1
            del self._free[block]
        else:
            block, _ = self._free.popitem(last=False)
        self.refs[block] = 1
        if self.poison:
            self._whole[:, block] = 0
        return block

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                raise IntegrityError(f"expected KV block {block} in use, found it free")
            self.refs[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                raise IntegrityError(f"expected KV block {block} in use, found it free")
            self.refs[block] -= 1
            if self.refs[block] == 0:
                self._free[block] = None
                if self.poison:
                    self._whole[:, block] = torch.nan

    def copy(self, source: int, target: int) -> None:
        """Copy the KV of one block in all layers."""
        self._whole[:, target] = self._whole[:, source]

    def write(self, layer: int, slots: "Tensor | slice", keys_values: Tensor) -> None:
        """Store [n, 2, kv_heads, head_dim] at `slots` (block * BLOCK_TOKENS + place in it)."""
        self.slots[layer][slots] = keys_values

    def read(
        self, layer: int, where: "Tensor | slice", first: int, last: int
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of positions first..last of a sequence: [1, kv_heads, n, head_dim] each.

        where: its blocks, as a slice where they are neighbours (a view), else as indices (a copy).
        """
        if isinstance(where, slice):
            start = where.start * BLOCK_TOKENS
            cache = self.slots[layer][start + first : start + last]
        else:
            cache = self.blocks[layer].index_select(0, where).flatten(0, 1)[first:last]
        keys, values = cache.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
        return keys, values

    def read_batch(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of many sequences: [n, kv_heads, tokens, head_dim] each.

        blocks: [n, blocks], shorter tables padded with any block in use.
        """
        cache = self.blocks[layer].index_select(0, blocks.flatten())
        cache = cache.view(len(blocks), -1, *cache.shape[2:])
        keys, values = cache.permute(2, 0, 3, 1, 4).unbind(0)
        return keys, values

    def check_integrity(self, held: Sequence[int]) -> None:
        """`held`: every reference that exists, one entry each. Raises: IntegrityError."""
        counts = [0] * self.n_blocks
        for block in held:
            counts[block] += 1
        for block, (expected, found) in enumerate(zip(counts, self.refs, strict=True)):
            if expected != found:
                raise IntegrityError(
                    f"KV block {block}: expected {expected} references, found {found}"
                )
            if (found == 0) != (block in self._free):
                raise IntegrityError(
                    f"KV block {block}: expected it on the free list only when unreferenced, "
                    f"found {found} references"
                )
