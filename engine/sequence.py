"""Owns one sequence of tokens and the KV blocks that hold its resident part.

The two primitives of the engine live here: `extend` (reserve, run, advance) and `truncate`. The KV
at a position depends only on the tokens up to it (I1), so truncation is a smaller `n_resident`.
"""

from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .kv_cache import KvPool
from .prefix_tree import ADAPTED, PrefixTree
from .types import BLOCK_TOKENS, n_blocks_for

if TYPE_CHECKING:
    from .adapters import Adapter


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the longest common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class Sequence:
    """tokens[:n_resident] have their KV in the blocks of `table`; the rest is pending."""

    __slots__ = ("adapter", "n_resident", "pool", "salt", "shared_as", "table", "tokens", "tree")

    def __init__(
        self, pool: KvPool, tree: PrefixTree, salt: str = "", adapter: "Adapter | None" = None
    ) -> None:
        """salt: of the tenant. adapter: of its rows, whose KV nobody without it may share."""
        self.pool, self.tree, self.salt, self.adapter = pool, tree, salt, adapter
        self.shared_as = salt if adapter is None else f"{ADAPTED}{adapter.key}\0{salt}"
        self.tokens: list[int] = []
        self.table = array("i")  # a step copies it as it lies
        self.n_resident = 0

    @property
    def slot(self) -> int:
        """Return the slot of its adapter; -1 where it has none."""
        return -1 if self.adapter is None else self.adapter.slot

    @property
    def n_pending(self) -> int:
        return len(self.tokens) - self.n_resident

    def retarget(self, tokens: list[int]) -> None:
        """Become `tokens`: keep the longest common prefix, share what the tree has beyond it."""
        self.truncate(common_prefix(self.tokens, tokens))
        self.tokens = tokens
        self.attach()

    def attach(self) -> None:
        """Take over committed blocks where they reach further than the sequence's own.

        The last token stays pending: whoever waits for the sequence wants its logits.
        """
        if self.n_pending < BLOCK_TOKENS:
            return
        shared = self.tree.match(self.tokens, self.shared_as)
        n_resident = min(len(shared) * BLOCK_TOKENS, len(self.tokens) - 1)
        if n_resident > self.n_resident:
            self.pool.share(shared)
            self.pool.release(self.table)
            self.table, self.n_resident = array("i", shared), n_resident

    def truncate(self, n_tokens: int) -> None:
        """Forget everything after the first `n_tokens`."""
        del self.tokens[n_tokens:]
        self.retreat(n_tokens)

    def retreat(self, n_resident: int) -> None:
        """Keep the tokens but only `n_resident` of their KV; the rest is pending again."""
        if n_resident < self.n_resident:
            self.n_resident = n_resident
        n_blocks = n_blocks_for(self.n_resident)
        if self.pool.n_ahead:  # room is kept where nobody else sees it
            n_room = n_blocks_for(self.n_resident + self.pool.n_ahead)
            if all(self.pool.refs[block] == 1 for block in self.table[n_blocks:n_room]):
                n_blocks = n_room
        if len(self.table) > n_blocks:
            self.pool.release(self.table[n_blocks:])
            del self.table[n_blocks:]

    def n_blocks_to_reserve(self, n_new: int) -> int:
        """Blocks that `reserve` would allocate."""
        n = n_blocks_for(self.n_resident + n_new + self.pool.n_ahead) - len(self.table)
        return max(0, n) + self._last_is_shared()

    def _last_is_shared(self) -> bool:
        """Whether the next write would go into a block somebody else sees too."""
        block, used = divmod(self.n_resident, BLOCK_TOKENS)
        return used > 0 and self.pool.refs[self.table[block]] > 1

    def reserve(self, n_new: int) -> None:
        """Own room for `n_new` tokens after the resident ones. Raises: OutOfMemory."""
        if self._last_is_shared():
            last = self.n_resident // BLOCK_TOKENS
            shared, own = self.table[last], self.pool.allocate()
            try:
                self.pool.copy(shared, own)
            except Exception:  # a device without memory: nobody else would give the block back
                self.pool.release([own])
                raise
            self.table[last] = own
            self.pool.release([shared])
        while len(self.table) * BLOCK_TOKENS < self.n_resident + n_new + self.pool.n_ahead:
            self.table.append(self.pool.allocate(self.table[-1] if self.table else None))

    def fork(self) -> "Sequence":
        """A second sequence on the same blocks; whoever writes first copies the partial one."""
        other = Sequence(self.pool, self.tree, self.salt, self.adapter)
        other.tokens = list(self.tokens)
        other.n_resident = self.n_resident
        other.table = self.table[: n_blocks_for(self.n_resident)]
        self.pool.share(other.table)
        return other

    def publish(self, n_tokens: int) -> None:
        """Let others share the full blocks among the first `n_tokens`, all of them committed."""
        n_full = min(n_tokens, self.n_resident) // BLOCK_TOKENS
        if n_full:
            self.tree.publish(self.tokens[: n_full * BLOCK_TOKENS], self.table, self.shared_as)

    def release(self) -> None:
        """Give every block back."""
        self.pool.release(self.table)
        self.table = array("i")
        self.n_resident = 0


@contextmanager
def borrowed(pool: KvPool, tree: PrefixTree, tokens: list[int]) -> Iterator[Sequence]:
    """A sequence to compute `tokens` with, for a measurement; its room is given back in any case.

    Raises: OutOfMemory.
    """
    sequence = Sequence(pool, tree)
    sequence.tokens = list(tokens)
    try:
        sequence.reserve(len(tokens))
        yield sequence
    finally:
        sequence.release()
