"""Owns the sharing of committed prefixes between requests, block by block.

A node stands for one full block of tokens after all blocks above it, and holds one reference to the
block of the pool that has its KV. Children are found by their salt and their token ids themselves
(a hash finds the place, equality decides), so that tenants never meet and a collision cannot mix
prompts; only the operator's own prefix stands for all of them.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .kv_cache import KvPool
from .types import BLOCK_TOKENS, IntegrityError

Key = tuple[str, tuple[int, ...]]  # salt and token ids

NOWHERE = -1
PUBLIC = "\0public"  # the salt of what every tenant may share; no tenant's name has a NUL
ADAPTED = "\0adapted"  # begins the salt of what an adapter computed, which is nobody else's


@dataclass(slots=True, eq=False)
class Node:
    """is_kept: held by others than the tree, or a child is: `n_kept` of them are."""

    key: Key
    block: int
    parent: "Node | None"
    children: "dict[Key, Node]" = field(default_factory=dict)
    is_kept: bool = False
    n_kept: int = 0

    @property
    def is_public(self) -> bool:
        return self.key[0] == PUBLIC


class PrefixTree:
    """Committed blocks of all conversations; the least recently used make room first."""

    def __init__(self, pool: KvPool, is_sharing: bool = True) -> None:
        """is_sharing: False stores nothing, so that every prompt is computed anew."""
        self.pool, self.is_sharing = pool, is_sharing
        self.public: list[int] = []  # the operator's prefix: whoever computes it shares it with all
        self._root = Node((PUBLIC, ()), NOWHERE, None)
        # By block, the oldest first, and a parent always younger than its children: leaves come
        # first.
        self._by_age: OrderedDict[int, Node] = OrderedDict()
        # Blocks that nobody but the tree holds, and nobody any below them.
        self.n_evictable = 0
        pool.evict, pool.on_shared = self.evict, self._on_shared

    def __len__(self) -> int:
        """Blocks of the pool."""
        return len(self._by_age)

    def match(self, tokens: Sequence[int], salt: str = "") -> list[int]:
        """Blocks of the longest prefix in the pool. The caller must take its own references."""
        path = self._walk(tokens, salt)
        self._touch(path)
        return [node.block for node in path]

    def _touch(self, path: list[Node]) -> None:
        """Used now: the last to make room, a parent after its children."""
        for node in reversed(path):
            self._by_age.move_to_end(node.block)

    def _walk(self, tokens: Sequence[int], salt: str) -> list[Node]:
        node, path = self._root, list[Node]()
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            block = tuple(tokens[start : start + BLOCK_TOKENS])
            may_share = node.is_public and not salt.startswith(ADAPTED)
            found = node.children.get((PUBLIC, block)) if may_share else None
            found = found or node.children.get((salt, block))
            if found is None:
                break
            path.append(found)
            node = found
        return path

    def publish(self, tokens: Sequence[int], blocks: Sequence[int], salt: str = "") -> None:
        """Store the full blocks of `tokens`, whose KV is `blocks`; known ones stay as they are.

        Only committed tokens may come here (I2).
        """
        if not self.is_sharing:
            return
        path = self._walk(tokens, salt)
        node = path[-1] if path else self._root
        n_public = 0 if salt.startswith(ADAPTED) else self._n_public(tokens)
        for i in range(len(path), len(tokens) // BLOCK_TOKENS):
            if blocks[i] in self._by_age or blocks[i] in self.pool.spoilt:
                break  # the block already stands elsewhere in the tree, or is of use to nobody
            block_tokens = tuple(tokens[i * BLOCK_TOKENS : (i + 1) * BLOCK_TOKENS])
            # Below a tenant's own block all is the tenant's: nobody else finds the way there.
            key = PUBLIC if node.is_public and i < n_public else salt, block_tokens
            child = Node(key, blocks[i], node)
            self.pool.share([blocks[i]])
            self._by_age[blocks[i]] = child
            self.n_evictable += 1
            self._follow(child)
            node.children[key] = child
            path.append(child)
            node = child
        self._touch(path)

    def _n_public(self, tokens: Sequence[int]) -> int:
        """Count the blocks of `tokens` that are the operator's."""
        n = 0
        while (n + 1) * BLOCK_TOKENS <= min(len(tokens), len(self.public)):
            own = slice(n * BLOCK_TOKENS, (n + 1) * BLOCK_TOKENS)
            if list(tokens[own]) != self.public[own]:
                break
            n += 1
        return n

    def _follow(self, node: Node) -> None:
        """Keep `n_evictable` up to date where a node, or one below it, has changed."""
        while node.parent is not None:
            is_kept = self.pool.refs[node.block] > 1 or node.n_kept > 0
            if is_kept == node.is_kept:
                return
            node.is_kept = is_kept
            self.n_evictable -= 1 if is_kept else -1
            node.parent.n_kept += 1 if is_kept else -1
            node = node.parent

    def _on_shared(self, block: int) -> None:
        if (node := self._by_age.get(block)) is not None:
            self._follow(node)

    def can_evict(self, n_blocks: int) -> bool:
        """Whether `evict` could give back that many."""
        return n_blocks <= self.n_evictable

    def evict(self, n_blocks: int) -> int:
        """Give back up to `n_blocks` of the pool, oldest first, the operator's prefix last.

        What is in use, or to be spared, is met once and counts as used now. Returns how many.
        """
        n_given = 0
        for spares_public in (True, False):
            for _ in range(len(self._by_age)):
                if n_given == n_blocks or not self.n_evictable:
                    return n_given
                node = next(iter(self._by_age.values()))
                if node.is_kept or (spares_public and node.is_public):
                    self._touch(_path_to(node))
                    continue
                del self._by_age[node.block]
                self.n_evictable -= 1
                self._cut(node)
                self.pool.release([node.block])
                n_given += 1
        return n_given

    def forget(self, blocks: Iterable[int]) -> None:
        """Share these, and all that was computed behind them, with nobody more."""
        for block in blocks:
            if block in self._by_age:
                self._forget(self._by_age[block])

    def _forget(self, node: Node) -> None:
        for child in list(node.children.values()):
            self._forget(child)
        del self._by_age[node.block]
        self.n_evictable -= not node.is_kept
        if node.parent is not None:
            node.parent.n_kept -= node.is_kept
            self._follow(node.parent)
        self.pool.release([node.block])
        self._cut(node)

    def _cut(self, node: Node) -> None:
        if node.children or node.parent is None:
            raise IntegrityError("expected a leaf to forget, found a block inside")
        del node.parent.children[node.key]

    def held(self) -> Iterator[int]:
        """Every reference the tree holds."""
        return iter(self._by_age)

    def check_integrity(self) -> None:
        """Raises: IntegrityError."""
        for place, node in self._by_age.items():
            parent = node.parent
            if parent is None or parent.children.get(node.key) is not node:
                raise IntegrityError(f"expected block {place} under its parent, found it cut")
            if len(node.key[1]) != BLOCK_TOKENS:
                raise IntegrityError(
                    f"expected {BLOCK_TOKENS} tokens in block {place}, found {len(node.key[1])}"
                )
            n_kept = sum(child.is_kept for child in node.children.values())
            is_kept = self.pool.refs[place] > 1 or n_kept > 0
            if (node.n_kept, node.is_kept) != (n_kept, is_kept):
                raise IntegrityError(f"expected block {place} kept as it is used, found it not")
            if place != node.block:
                raise IntegrityError(f"expected block {place} where it is filed, found it moved")
        n_evictable = sum(not node.is_kept for node in self._by_age.values())
        if n_evictable != self.n_evictable:
            raise IntegrityError(f"expected {n_evictable} to evict, found {self.n_evictable}")


def _path_to(node: Node) -> list[Node]:
    """Return the node and all above it, from the top."""
    path = list[Node]()
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]
