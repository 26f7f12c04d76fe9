"""Owns the paged KV memory: one tensor of blocks, their reference counts, and the free list.

A block holds `BLOCK_TOKENS` consecutive tokens of every layer. Whoever keeps a block id holds one
reference; a block is free when none is left. Sequences write only into blocks they own alone (I3).
"""

import math
import mmap
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .kv_format import KV_FORMATS, KvFormat
from .types import BLOCK_TOKENS, IntegrityError, OutOfMemory


@dataclass(frozen=True, slots=True)
class BlockStore:
    """Blocks outside the pool: [block, layer, token in block, key or value, kv head, code]; scales
    likewise, with nothing in the last dimension where the format has none.
    """

    codes: Tensor
    scales: Tensor


class KvPool:
    """Blocks of [layer, block, token in block, key or value, kv head, code]; scales likewise."""

    def __init__(
        self,
        *,
        n_layers: int,
        n_kv_heads: int,
        head_dim: int,
        n_blocks: int,
        dtype: torch.dtype,
        device: str = "cpu",
        kv_format: str = "plain",
        poison: bool = False,
    ) -> None:
        """poison: fill freed blocks with NaN, so that a read of one shows up (tests)."""
        self.format: KvFormat = KV_FORMATS[kv_format](dtype)
        shape = (n_layers, n_blocks, BLOCK_TOKENS, 2, n_kv_heads)
        self._codes = _zeros((*shape, head_dim), self.format.code_dtype, device)
        n_scales = n_kv_heads if self.format.is_scaled else 0
        self._scales = _zeros((*shape[:-1], n_scales), dtype, device)
        # Views by layer: indexing them costs less than indexing the whole.
        self.blocks = list(self._codes.unbind(0))
        self.slots = [layer.flatten(0, 1) for layer in self.blocks]
        self.scale_blocks = list(self._scales.unbind(0))
        self._scale_slots = [layer.flatten(0, 1) for layer in self.scale_blocks]
        self.n_blocks, self.poison, self.device = n_blocks, poison, device
        # Tokens beyond those asked for that a sequence keeps room for: a runner that computes
        # steps ahead writes there.
        self.n_ahead = 0
        self.refs = [0] * n_blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_blocks))
        # Blocks whose keys or values are no numbers, for as long as anybody has them.
        self.spoilt = set[int]()
        # Asked for blocks when none is free; set by the prefix tree, returns how many it gave back.
        self.evict: Callable[[int], int] = lambda n_blocks: 0
        # Told of a block that has one holder, or one more than that, from now on; likewise.
        self.on_shared: Callable[[int], None] = lambda block: None
        if poison:
            self._fill(slice(None), torch.nan)

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
            self._fill(block, 0.0)
        return block

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                raise IntegrityError(f"expected KV block {block} in use, found it free")
            self.refs[block] += 1
            if self.refs[block] == 2:
                self.on_shared(block)

    def release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if self.refs[block] == 0:
                raise IntegrityError(f"expected KV block {block} in use, found it free")
            self.refs[block] -= 1
            if self.refs[block] == 1:
                self.on_shared(block)
            elif self.refs[block] == 0:
                self._free[block] = None
                if block in self.spoilt:  # a masked NaN would spoil whoever has it next
                    self.spoilt.remove(block)
                    self._codes[:, block] = 0
                    self._scales[:, block] = 0
                if self.poison:
                    self._fill(block, torch.nan)

    def copy(self, source: int, target: int) -> None:
        """Copy the KV of one block in all layers."""
        self._codes[:, target] = self._codes[:, source]
        self._scales[:, target] = self._scales[:, source]

    @property
    def block_bytes(self) -> int:
        """Count the bytes of one block, in all layers."""
        return (self._codes.nbytes + self._scales.nbytes) // self.n_blocks

    def store(self, n_blocks: int) -> BlockStore:
        """Room in the machine's memory for copies of blocks."""
        layers, _, *rest = self._codes.shape
        codes = _zeros((n_blocks, layers, *rest), self._codes.dtype, "cpu")
        scales = (n_blocks, layers, *self._scales.shape[2:])
        return BlockStore(codes, _zeros(scales, self._scales.dtype, "cpu"))

    def save(self, block: int, store: BlockStore, place: int) -> None:
        """Copy a block into a store."""
        store.codes[place] = self._codes[:, block]
        store.scales[place] = self._scales[:, block]

    def restore(self, store: BlockStore, place: int, block: int) -> None:
        """The inverse."""
        self._codes[:, block] = store.codes[place]
        self._scales[:, block] = store.scales[place]

    def _fill(self, block: "int | slice", value: float) -> None:
        (self._scales if self.format.is_scaled else self._codes)[:, block] = value

    def find_spoilt(self, blocks: Iterable[int]) -> list[int]:
        """Return the blocks among these that hold NaN or infinity; they are cleared once nobody has
        them.
        """
        part = self._scales if self.format.is_scaled else self._codes
        found = [block for block in blocks if not part[:, block].isfinite().all()]
        self.spoilt.update(found)
        return found

    def write(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Store [n, 2, kv_heads, head_dim] at `slots` (block * BLOCK_TOKENS + place in it)."""
        codes, scales = self.format.encode(keys_values)
        self.slots[layer][slots] = codes
        if scales is not None:
            self._scale_slots[layer][slots] = scales

    def vectors(self, layer: int, slots: Tensor) -> Tensor:
        """Read what `write` stored at `slots` [n]: [n, 2, kv_heads, head_dim]."""
        scales = self._scale_slots[layer][slots] if self.format.is_scaled else None
        return self.format.decode(self.slots[layer][slots], scales)

    def read(self, layer: int, blocks: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Keys and values of positions first..last of a sequence: [1, kv_heads, n, head_dim] each.

        blocks: the sequence's.
        """
        codes, scales = (
            part[layer].index_select(0, blocks).flatten(0, 1)[first:last]
            for part in (self.blocks, self.scale_blocks)
        )
        cache = self.format.decode(codes, scales)
        keys, values = cache.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
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


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    """Zeros: a masked slot still meets the softmax's 0, and 0 * NaN is NaN.

    On a CPU they are pages that nobody has written yet: a server whose pool is never full has only
    the used part of it in memory.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    if device != "cpu" or not n_bytes:
        return torch.zeros(shape, dtype=dtype, device=device)
    pages = torch.frombuffer(mmap.mmap(-1, n_bytes), dtype=torch.uint8)
    return pages.view(dtype).view(shape)
